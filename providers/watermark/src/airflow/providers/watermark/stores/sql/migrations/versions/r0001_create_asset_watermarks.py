"""Create the table ``asset_watermarks``."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, unless a migration that was interrupted has done so: MySQL cannot take that back."""
    import sqlalchemy as sa
    from sqlalchemy.dialects import mysql, postgresql

    # Compared byte by byte everywhere, but for trailing spaces in MySQL: the store writes none.
    def text(length: int) -> sa.types.TypeEngine[str]:
        binary = mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin")
        return (
            sa.String(length)
            .with_variant(binary, "mysql", "mariadb")
            .with_variant(postgresql.VARCHAR(length, collation="C"), "postgresql")
        )

    long_text = mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin")
    exact_time = mysql.DATETIME(fsp=6)
    if sa.inspect(op.get_bind()).has_table("asset_watermarks"):
        return
    op.create_table(
        "asset_watermarks",
        sa.Column("asset_name", text(200), primary_key=True),
        sa.Column("namespace", text(200), primary_key=True),
        sa.Column("key", text(200), primary_key=True),
        sa.Column("value", sa.Text().with_variant(long_text, "mysql", "mariadb"), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True).with_variant(exact_time, "mysql", "mariadb"),
            nullable=False,
        ),
        mysql_engine="InnoDB",
        mariadb_engine="InnoDB",
    )


def downgrade() -> None:
    """Drop the table, with all watermarks in it."""
    op.drop_table("asset_watermarks")
