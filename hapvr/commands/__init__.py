"""The verbs of the command line, by what they are about."""

import os

# Looking for plugins of pydantic reads the metadata of every installed package, in each process.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
