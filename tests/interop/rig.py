"""What a test works with: the peers around the gateway, and assertions that say what differs."""

import contextlib

import grpc

from agent import Agent
from contract import gateway

CONNECTED = gateway.StreamStatusNotification.CONNECTED
DISCONNECTED = gateway.StreamStatusNotification.DISCONNECTED


class Rig:
    """What a test works with: the three peers' sides and the gateway between them."""

    def __init__(self, test, server, gateway_process, operator):
        self.test = test
        self.server = server
        self.gateway = gateway_process
        self.operator = operator
        self.agents = []

    def agent(self, name="a", **settings):
        """A new agent on its own connection, with an id that no other test uses."""
        made = Agent(self.gateway.agent_address, f"{self.test}-{name}", **settings)
        self.agents.append(made)
        return made

    def connected(self, name="a", **settings):
        """A new agent that has registered and subscribed, and that the server knows of."""
        made = self.agent(name, **settings)
        assert made.register().accepted
        made.subscribe()
        self.notice(made, CONNECTED)
        return made

    def notice(self, of, event):
        """Waits for a stream-status notice of an agent's session and returns it."""
        return self.server.wait(
            "NotifyStreamStatus",
            lambda r: r.session_id == of.session_id and r.event == event)[0].request

    def registration(self, of):
        """The first ProxyRegister call for an agent."""
        return self.server.wait(
            "ProxyRegister", lambda r: r.info.agent_id == of.agent_id)[0]


@contextlib.contextmanager
def status(code, details=None):
    """Expects a call to end with this status, and with these details when given."""
    try:
        yield
    except grpc.RpcError as error:
        assert error.code() == code, f"{error.code()} ({error.details()}) instead of {code}"
        if details is not None:
            assert error.details() == details, f"details {error.details()!r}"
        return
    raise AssertionError(f"OK instead of {code}")


def equal(left, right):
    """Asserts that two values are the same."""
    assert left == right, f"{str(left)[:300]!r} is not {str(right)[:300]!r}"


def frames(answers):
    """(status, output) of each answer, in order."""
    return [(a.response.status, a.response.output) for a in answers]
