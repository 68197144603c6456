"""Dagster's event log in PostgreSQL, with pools that hold no more than their limit; needs the extra `cluster`."""

from collections.abc import Mapping
from typing import Any, Self

from dagster._serdes import ConfigurableClassData
from dagster_postgres.event_log import PostgresEventLogStorage
from dagster_postgres.utils import pg_url_from_config
from sqlalchemy.dialects import postgresql

from pipelines.pools import ExactPools


class PostgresEventLog(ExactPools, PostgresEventLogStorage):
    """The event log of an instance whose storage is PostgreSQL."""

    insert: Any = staticmethod(postgresql.insert)

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Self:
        return cls(pg_url_from_config(config_value), inst_data=inst_data)
