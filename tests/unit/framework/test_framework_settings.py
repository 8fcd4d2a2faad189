"""Settings from environment variables, and the names that the framework shares with the contract."""

import pytest

from gpu_runtime.contract import framework_protocol as contract
from gpu_runtime.contract.crd.gpu_unit import MAX_SOCKET_PATH_BYTES, Framework, Serverless
from gpu_runtime.framework import CannotServe, request, settings
from gpu_runtime.framework.settings import FrameworkServerSettings, from_environment


def test_framework_names_match_the_contract() -> None:
    variables = {
        contract.SOCKET_VARIABLE: settings.SOCKET_VARIABLE,
        contract.INVOKE_PATH_VARIABLE: settings.INVOKE_PATH_VARIABLE,
        contract.HEALTH_PATH_VARIABLE: settings.HEALTH_PATH_VARIABLE,
        contract.CONCURRENCY_VARIABLE: settings.CONCURRENCY_VARIABLE,
        contract.MAX_BODY_BYTES_VARIABLE: settings.MAX_BODY_BYTES_VARIABLE,
    }
    headers = ("INVOCATION_ID_HEADER", "DEADLINE_HEADER", "ATTEMPT_HEADER", "ATTRIBUTES_HEADER", "CALLER_HEADER_PREFIX")
    assert all(theirs == ours for theirs, ours in variables.items())
    assert [getattr(contract, name) for name in headers] == [getattr(request, name) for name in headers]


def test_defaults_equal_those_of_the_gpu_unit_resource() -> None:
    resource, default = Framework(), FrameworkServerSettings()
    assert (default.socket_path, default.invoke_path, default.health_path, default.concurrency) == (
        resource.socket_path,
        resource.invoke_path,
        resource.health_path,
        Serverless().concurrency,
    )
    assert settings.MAX_SOCKET_PATH_BYTES == MAX_SOCKET_PATH_BYTES


def test_missing_and_empty_variables_mean_the_defaults() -> None:
    assert from_environment({}) == FrameworkServerSettings()
    assert from_environment({"GPU_RUNTIME_SOCKET": "", "GPU_RUNTIME_CONCURRENCY": ""}) == FrameworkServerSettings()


def test_settings_are_read_from_the_environment() -> None:
    loaded = from_environment(
        {
            "GPU_RUNTIME_SOCKET": "/a/b",
            "GPU_RUNTIME_INVOKE_PATH": "/i",
            "GPU_RUNTIME_HEALTH_PATH": "/h",
            "GPU_RUNTIME_CONCURRENCY": "7",
            "GPU_RUNTIME_MAX_BODY_BYTES": "9",
        }
    )
    assert (loaded.socket_path, loaded.invoke_path, loaded.health_path, loaded.concurrency) == ("/a/b", "/i", "/h", 7)
    assert loaded.limits.max_body_bytes == 9


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", "٣", "9" * 30])
def test_concurrency_must_be_an_integer_greater_than_zero(value: str) -> None:
    with pytest.raises(CannotServe, match=r"GPU_RUNTIME_CONCURRENCY is .* use an integer greater than 0"):
        from_environment({"GPU_RUNTIME_CONCURRENCY": value})


def test_invoke_and_health_path_must_differ() -> None:
    with pytest.raises(CannotServe, match="use different paths"):
        from_environment({"GPU_RUNTIME_INVOKE_PATH": "/healthz"})
