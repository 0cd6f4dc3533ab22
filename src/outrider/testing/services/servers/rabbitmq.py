"""A private RabbitMQ node with its own epmd."""

import re
import secrets
import shutil
from functools import cached_property
from pathlib import Path

from outrider.testing.services.errors import ServerFailed
from outrider.testing.services.install.programs import PATH, Program
from outrider.testing.services.ports import LOOPBACK, exchange
from outrider.testing.services.servers.server import Server

PROGRAM = Program(
    service="rabbitmq",
    names=("rabbitmq-server",),
    # The program on Debian's PATH is a wrapper that switches to the user `rabbitmq`.
    places=("/usr/lib/rabbitmq/bin", PATH),
    package="rabbitmq-server",
    remedy="sudo apt-get install rabbitmq-server",
)

USER = "outrider"


class RabbitMQ(Server):
    """A node with its own virtual host and user."""

    kind = "rabbitmq"
    vhost = ""
    ports_needed = 3  # AMQP, Erlang distribution, epmd
    deadline = 120

    @cached_property
    def programs(self) -> Path:
        return self.program(PROGRAM).parent

    @property
    def version(self) -> str:
        found = re.search(rb"versionS\0\0\0.([\d.]+)", self.ask(), re.DOTALL)
        return found[1].decode() if found else "unknown"

    def prepare(self) -> None:
        settings = (
            f"listeners.tcp.1 = {LOOPBACK}:{self.port}",
            f"default_user = {USER}",
            f"default_pass = {self.password}",
            f"default_vhost = {self.name}",
        )
        (self.folder / "rabbitmq.conf").write_text("\n".join(settings) + "\n")
        (self.folder / "enabled_plugins").write_text("[].\n")
        cookie = self.folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.touch(mode=0o600)
            cookie.write_text(self.password)

    def command(self) -> list[str]:
        return [str(self.programs / "rabbitmq-server")]

    def environment(self) -> dict[str, str]:
        on_loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
        return {
            "ERL_EPMD_ADDRESS": LOOPBACK,
            "ERL_EPMD_PORT": str(self.ports[2]),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "rabbitmq-env.conf"),
            "RABBITMQ_CTL_ERL_ARGS": on_loopback,
            "RABBITMQ_DIST_PORT": str(self.ports[1]),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            # The default is this machine's host name, which may not resolve.
            "RABBITMQ_NODENAME": f"{self.name}@localhost",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": on_loopback,
        }

    def private_url(self) -> str:
        return f"amqp://{USER}:{self.password}@{LOOPBACK}:{self.port}/{self.vhost or self.name}"

    def enter(self, namespace: str) -> None:
        self.vhost = f"{self.name}-{namespace}"
        vhost, user, acting, everything = map(_binary, (self.vhost, USER, "outrider", ".*"))
        self.eval(
            f"rabbit_vhost:add({vhost}, {acting}), rabbit_auth_backend_internal:set_permissions("
            f"{user}, {vhost}, {everything}, {everything}, {everything}, {acting})."
        )

    def ask(self) -> bytes:
        # The first frame has the name of the cluster, which contains the name of the node.
        return exchange(self.port, b"AMQP\x00\x00\x09\x01")

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl against this node."""
        self._must_be_ours()
        return self.run(self.programs / "rabbitmqctl", *arguments)

    def eval(self, expression: str) -> str:
        """Evaluate Erlang in this node; faster by seconds than `ctl` where erl_call exists."""
        self._must_be_ours()
        caller = shutil.which("erl_call")
        if caller is None:
            return self.ctl("eval", expression)
        # The node refuses a second caller of the same name.
        node = ("-h", f"caller{secrets.token_hex(4)}", "-sname", f"{self.name}@localhost")
        answer = self.run(caller, *node, "-e", stdin=f"{expression}\n").strip()
        if not answer.startswith("{ok, "):
            raise ServerFailed(f"erl_call failed: {answer}")
        return answer.removeprefix("{ok, ").removesuffix("}")


def _binary(text: str) -> str:
    return f'<<"{text}">>'
