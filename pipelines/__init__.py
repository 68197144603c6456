"""What Dagster loads: definitions, resources, jobs; and the demo that runs them without a daemon."""
