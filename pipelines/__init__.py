"""What Dagster loads: definitions, resources and jobs. Also the demo, and the servers of `make
ui`."""

from hapvr.processors import prepare_program

prepare_program()  # before numpy is imported, by a module of this package
