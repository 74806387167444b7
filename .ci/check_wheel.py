"""Check a wheel that was installed, without extras and without tools, into the environment that runs this.

Usage: ``python -I .ci/check_wheel.py dist/airflow_provider_watermark-*.whl`` (the standard library only).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from importlib import import_module, metadata
from pathlib import Path, PurePosixPath

DISTRIBUTION = "airflow-provider-watermark"
PACKAGE = "airflow.providers.watermark"
KIT = f"{PACKAGE}.testing"


def check_contents(wheel: Path) -> list[str]:
    """Return the modules of the wheel; it may hold the package and its metadata, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = [PurePosixPath(name) for name in archive.namelist()]
    root = PurePosixPath("airflow/providers/watermark")
    others = [name for name in names if not name.is_relative_to(root)]
    strangers = [str(name) for name in others if not name.parts[0].endswith(".dist-info")]
    assert not strangers, f"the wheel holds files from outside the package: {strangers}"
    assert root / "py.typed" in names, "the wheel lacks py.typed, so its types are lost to others"
    licenses = {name.name for name in names if "licenses" in name.parts}
    assert {"LICENSE", "NOTICE"} <= licenses, f"the wheel lacks LICENSE or NOTICE; it has {sorted(licenses)}"
    modules = [name.with_suffix("") for name in names if name.suffix == ".py"]
    return [".".join(m.parent.parts if m.name == "__init__" else m.parts) for m in modules]


def check_imports(modules: list[str]) -> None:
    """Import every module but the testing kit, which needs an extra, and migrations, which Alembic runs."""
    for module in modules:
        is_script = module.endswith(".__main__") or ".migrations." in module
        if module != KIT and not module.startswith(f"{KIT}.") and not is_script:
            import_module(module)
    sdks = sorted({"aiobotocore", "boto3", "botocore", "gcloud"} & sys.modules.keys())
    assert not sdks, f"importing the package imports {sdks}"


def check_airflow(home: str) -> None:
    """Ask the installed Airflow for its providers and for the option of ours."""
    environment = {**os.environ, "AIRFLOW_HOME": home, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}

    def airflow(*arguments: str) -> str:
        command = [sys.executable, "-I", "-m", "airflow", *arguments]
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert result.returncode == 0, f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}"
        return result.stdout

    listed = airflow("providers", "list", "--output", "json")
    providers = json.loads(listed[listed.index("[") :])
    versions = {provider["package_name"]: provider["version"] for provider in providers}
    expected = metadata.version(DISTRIBUTION)
    assert versions.get(DISTRIBUTION) == expected, f"'airflow providers list' shows only {versions}"
    store = airflow("config", "get-value", "watermark", "store").split()[-1]
    assert store.startswith(f"{PACKAGE}.stores."), f"[watermark] store is {store!r}"
    print(f"{DISTRIBUTION} {expected}: seen by 'airflow providers list'; [watermark] store = {store}")


def main() -> None:
    """Run all checks; an AssertionError says which one failed."""
    modules = check_contents(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory(prefix="check-wheel-") as home:
        os.environ["AIRFLOW_HOME"] = home
        check_imports(modules)
        check_airflow(home)
    print(f"{len(modules)} modules, and nothing else in the wheel")


if __name__ == "__main__":
    main()
