"""SQL that counts pending rows and deletes published ones. Tests look at its query plans."""

from __future__ import annotations

from outrider.store.schema.tables import PENDING, PUBLISHED

# $1 sink, $2 the most to count: on a large table a full count would take long
COUNT_PENDING = f"""
SELECT count(*) FROM (
    SELECT FROM {{outbox}} WHERE status = '{PENDING}' AND sink = $1 LIMIT $2
) AS pending
"""  # noqa: S608

# A step looks at the oldest few rows only, so that it is short whatever the table's size.
# $1 sink, $2 how many, $3 age
DELETE_PUBLISHED = f"""
DELETE FROM {{outbox}} WHERE position IN (
    SELECT position FROM (
        SELECT position, published_at FROM {{outbox}}
        WHERE sink = $1 AND delivery_number IS NOT NULL
        ORDER BY delivery_number
        LIMIT $2
    ) AS oldest
    WHERE published_at < clock_timestamp() - $3::interval
) AND status = '{PUBLISHED}'
"""  # noqa: S608
