"""The timeout of one attempt of a Kubernetes request."""

import pytest

from gpu_runtime.process.shared_settings import KubernetesSettings
from gpu_runtime.runtime_api.main import kube_attempt_timeout
from gpu_runtime.runtime_api.settings import RequestLimitSettings, RuntimeAPISettings


@pytest.mark.parametrize(
    ("request_seconds", "kubernetes_seconds", "attempt"), [(30, 10, 3), (60, 10, 6), (240, 10, 10), (30, 1, 1)]
)
def test_attempt_timeout_allows_a_second_attempt(
    request_seconds: float, kubernetes_seconds: float, attempt: float
) -> None:
    settings = RuntimeAPISettings(
        limits=RequestLimitSettings(request_timeout_seconds=request_seconds),
        kubernetes=KubernetesSettings(request_timeout_seconds=kubernetes_seconds),
    )
    assert kube_attempt_timeout(settings) == pytest.approx(attempt)
