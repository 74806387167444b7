"""The ``object_storage`` store keeps the contract: on disk, in S3 and in GCS."""

from __future__ import annotations

import pytest

from airflow.providers.watermark.testing import StoreContract
from tests.stores.object_folders import object_folder


def _folder(name):
    @pytest.fixture(scope="module")
    def folder(tmp_path_factory):
        with object_folder(name, tmp_path_factory.mktemp(name)) as made:
            yield made

    return folder


disk, ministack, moto, gcs, memory = map(_folder, ("disk", "ministack", "moto", "gcs", "memory"))


class TestDisk(StoreContract):
    @pytest.fixture
    def backend(self, disk):
        disk.empty()
        return disk


class TestMinistack(StoreContract):
    @pytest.fixture
    def backend(self, ministack):
        ministack.empty()
        return ministack


class TestMoto(StoreContract):
    @pytest.fixture
    def backend(self, moto):
        moto.empty()
        return moto


class TestGcs(StoreContract):
    @pytest.fixture
    def backend(self, gcs):
        gcs.empty()
        return gcs


class TestAnyOtherFileSystem(StoreContract):
    @pytest.fixture
    def backend(self, memory):
        memory.empty()
        return memory
