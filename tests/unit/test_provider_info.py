from __future__ import annotations

import inspect
import json
import subprocess
import sys
from importlib import import_module, metadata, resources
from pathlib import Path

import jsonschema

import airflow.providers.watermark
from airflow.providers.watermark.provider_info import get_provider_info
from airflow.providers.watermark.triggers.base import BaseWatermarkTrigger

DISTRIBUTION = "airflow-provider-watermark"
PACKAGE = "airflow.providers.watermark"

# `import airflow` itself brings in SQLAlchemy, so that is not held against us.
TOO_DEAR = ("aiobotocore", "airflow.providers.amazon.aws", f"{PACKAGE}.triggers", "boto3", "botocore")


def test_it_satisfies_the_schema_of_the_installed_airflow():
    schema = json.loads(resources.files("airflow").joinpath("provider_info.schema.json").read_text())

    jsonschema.validate(get_provider_info(), schema)


def test_the_package_name_is_that_of_the_installed_distribution():
    assert get_provider_info()["package-name"] == metadata.metadata(DISTRIBUTION)["Name"] == DISTRIBUTION


def test_the_installed_distribution_has_the_version_of_the_package():
    assert metadata.version(DISTRIBUTION) == airflow.providers.watermark.__version__


def test_the_entry_point_leads_to_it():
    (entry_point,) = metadata.distribution(DISTRIBUTION).entry_points.select(group="apache_airflow_provider")

    assert entry_point.load() is get_provider_info


def defines_a_watcher(module: str) -> bool:
    return any(
        issubclass(member, BaseWatermarkTrigger)
        and member.__module__ == module
        and not inspect.isabstract(member)
        for _, member in inspect.getmembers(import_module(module), inspect.isclass)
    )


def test_exactly_the_modules_that_define_a_watcher_are_listed():
    folder = Path(airflow.providers.watermark.__file__).parent / "triggers"
    modules = sorted(
        f"{PACKAGE}.triggers.{path.stem}" for path in folder.glob("*.py") if path.stem != "__init__"
    )

    (triggers,) = get_provider_info()["triggers"]

    assert f"{PACKAGE}.triggers.s3" in triggers["python-modules"]
    assert triggers["python-modules"] == [module for module in modules if defines_a_watcher(module)]


def test_every_integration_that_is_named_exists():
    info = get_provider_info()

    named = {part["integration-name"] for part in info["triggers"]}

    assert named <= {integration["integration-name"] for integration in info["integrations"]}


def test_the_store_option_has_a_default_that_can_be_imported():
    default = get_provider_info()["config"]["watermark"]["options"]["store"]["default"]
    module, _, name = default.rpartition(".")

    assert isinstance(getattr(import_module(module), name), type)


def test_reading_it_imports_no_watcher_and_no_sdk():
    code = (
        "import sys\n"
        "from airflow.providers.watermark.provider_info import get_provider_info\n"
        "get_provider_info()\n"
        f"print([name for name in {TOO_DEAR!r} if name in sys.modules])\n"
    )

    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (result.returncode, result.stdout.splitlines()[-1:]) == (0, ["[]"]), result.stderr
