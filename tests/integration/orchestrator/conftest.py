"""Databases for several orchestrators."""

import psycopg
import pytest


@pytest.fixture
def postgres_url(postgres):
    """The URL of an empty database in PostgreSQL."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS replicas")
        connection.execute("CREATE DATABASE replicas")
    return postgres.rsplit("/", 1)[0] + "/replicas"
