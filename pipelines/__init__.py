"""What Dagster loads: definitions, resources and jobs. Also the demo, and the servers of `make
ui`."""
