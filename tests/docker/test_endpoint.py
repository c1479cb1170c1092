"""Where the daemon is looked for."""

import hashlib
import json
from pathlib import Path

import pytest

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers.docker._endpoint import DEFAULT_URL, Endpoint


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def _add_context(config: Path, name: str, host: str) -> None:
    folder = config / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    folder.mkdir(parents=True)
    meta = {"Name": name, "Metadata": {}, "Endpoints": {"docker": {"Host": host}}}
    (folder / "meta.json").write_text(json.dumps(meta))


def test_the_default_is_the_local_socket() -> None:
    endpoint = Endpoint.resolve(None)
    assert (endpoint.url, endpoint.socket_path) == (DEFAULT_URL, "/var/run/docker.sock")


def test_docker_host_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:2999")
    endpoint = Endpoint.resolve(None)
    assert (endpoint.host, endpoint.port, endpoint.socket_path) == ("127.0.0.1", 2999, None)


def test_an_argument_wins_over_docker_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:2999")
    assert Endpoint.resolve("unix:///tmp/x.sock").socket_path == "/tmp/x.sock"


def test_the_current_docker_context_is_followed(no_configuration: Path) -> None:
    _add_context(no_configuration, "far", "tcp://127.0.0.1:2998")
    (no_configuration / "config.json").write_text('{"currentContext": "far"}')
    assert Endpoint.resolve(None).port == 2998


def test_docker_context_in_the_environment_is_followed(
    no_configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _add_context(no_configuration, "far", "unix:///tmp/far.sock")
    monkeypatch.setenv("DOCKER_CONTEXT", "far")
    assert Endpoint.resolve(None).socket_path == "/tmp/far.sock"


def test_docker_host_wins_over_a_context(
    no_configuration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _add_context(no_configuration, "far", "unix:///tmp/far.sock")
    monkeypatch.setenv("DOCKER_CONTEXT", "far")
    monkeypatch.setenv("DOCKER_HOST", "unix:///tmp/near.sock")
    assert Endpoint.resolve(None).socket_path == "/tmp/near.sock"


def test_an_unknown_context_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "nowhere")
    with pytest.raises(ConfigurationError, match=r"nowhere.*docker context ls"):
        Endpoint.resolve(None)


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("ssh://me@there", "ssh -nNT -L"),
        ("npipe:////./pipe/docker_engine", "use unix://"),
        ("tcp://:2375", "use unix://"),
        ("tcp://host:notaport", "use unix://"),
        ("/var/run/docker.sock", "use unix://"),
        ("unix://", "use unix://"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_a_remedy(url: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        Endpoint.parse(url)


def test_tls_settings_make_a_verifying_context(tmp_path: Path) -> None:
    context = Endpoint.parse("https://docker.example:2376").ssl_context()
    assert context is not None
    assert context.check_hostname
