"""What a test works with: the peers around the gateway, and assertions that say what differs."""

import contextlib

import grpc
from google.protobuf import message_factory

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


def fields(message):
    """The fields that are set, by name."""
    return {field.name: value for field, value in message.ListFields()}


def filled(kind, depth=0):
    """A message of this kind in which every field is set, three messages deep."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        target = getattr(message, field.name)
        if field.message_type is None:
            value = scalar(field)
            target.append(value) if field.is_repeated else setattr(message, field.name, value)
        elif field.message_type.GetOptions().map_entry:
            _fill_entry(target, field.message_type.fields_by_name)
        elif depth < 3:
            value = filled(message_factory.GetMessageClass(field.message_type), depth + 1)
            target.append(value) if field.is_repeated else target.CopyFrom(value)
    return message


def _fill_entry(target, entry):
    target[scalar(entry["key"])] = scalar(entry["value"])


def scalar(field):
    """A value that is not the default and is the largest or an awkward one of its type."""
    kinds = type(field)
    return {
        kinds.CPPTYPE_STRING: f"{field.name} \u00fc" if field.type == kinds.TYPE_STRING
        else b"\x00\xff" + field.name.encode(),
        kinds.CPPTYPE_BOOL: True,
        kinds.CPPTYPE_INT32: -(2**31),
        kinds.CPPTYPE_INT64: -(2**63),
        kinds.CPPTYPE_UINT64: 2**64 - 1,
        kinds.CPPTYPE_FLOAT: 0.5,
        kinds.CPPTYPE_ENUM: max(v.number for v in field.enum_type.values)
        if field.enum_type else 0,
    }[field.cpp_type]
