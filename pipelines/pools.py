"""Dagster's event logs, with pools that hold no more than their limit; the files dagster.yaml under dagster_home choose them.

Dagster 1.13 gives a slot of a pool away by reading a free one and then writing the step's name into it: of two runs that ask within
the same milliseconds both write, and both go on. Here the write asks again whether the slot is free. PostgreSQL's transaction is
lost when a pool is opened that another run has just opened; here opening is one statement.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import sqlalchemy
from dagster._core.storage.event_log import SqlEventLogStorage, SqliteEventLogStorage
from dagster._core.storage.event_log.schema import ConcurrencyLimitsTable, ConcurrencySlotsTable
from dagster._serdes import ConfigurableClassData
from dagster._utils.concurrency import ConcurrencySlotStatus
from sqlalchemy.dialects import sqlite


class ExactPools(SqlEventLogStorage):
    """Gives a slot of a pool to one step only."""

    insert: Any = staticmethod(sqlite.insert)

    def initialize_concurrency_limit_to_default(self, concurrency_key: str) -> bool:
        """Opens a pool with the default limit, or moves an open one to it; a limit that somebody set stays."""
        limit = self._instance.global_op_concurrency_default_limit if self.has_instance else None
        if limit is None:
            return super().initialize_concurrency_limit_to_default(concurrency_key)
        opening = self.insert(ConcurrencyLimitsTable).values(
            concurrency_key=concurrency_key, limit=limit, using_default_limit=True
        )
        columns = ConcurrencyLimitsTable.c
        key = columns.concurrency_key
        opening = opening.on_conflict_do_update(
            index_elements=[key], set_={"limit": limit}, where=columns.using_default_limit.is_(True)
        )
        with self.index_transaction() as connection:
            connection.execute(opening)
            limit = connection.execute(sqlalchemy.select(columns.limit).where(key == concurrency_key)).scalar_one()
            self._allocate_concurrency_slots(connection, concurrency_key, limit)
        return True

    def _claim_concurrency_slot(self, concurrency_key: str, run_id: str, step_key: str) -> ConcurrencySlotStatus:
        slots = ConcurrencySlotsTable.c
        is_free = sqlalchemy.and_(
            slots.concurrency_key == concurrency_key, slots.step_key.is_(None), slots.deleted.is_(False)
        )
        with self.index_connection() as connection:
            for slot in connection.execute(sqlalchemy.select(slots.id).where(is_free)).scalars().all():
                claim = sqlalchemy.update(ConcurrencySlotsTable).where(slots.id == slot, is_free)
                if connection.execute(claim.values(run_id=run_id, step_key=step_key)).rowcount:
                    return ConcurrencySlotStatus.CLAIMED
        return ConcurrencySlotStatus.BLOCKED


class SqliteEventLog(ExactPools, SqliteEventLogStorage):
    """The event log of an instance without a database server, where Dagster keeps it: `base_dir`/history/runs."""

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Self:
        return cls(str(Path(config_value["base_dir"], "history", "runs")), inst_data)
