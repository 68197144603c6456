"""The only code that knows how data lies on disk: schemas, tensor columns, atomic shards,
readers."""
