"""A control plane on gRPC C-core: the GatewayUpstream service, with what it received."""

import secrets
import threading
import time
from concurrent import futures

import grpc

import tls
from contract import agent, gateway, gateway_rpc

OPTIONS = {
    "grpc.keepalive_time_ms": 60_000,
    "grpc.keepalive_timeout_ms": 20_000,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.max_pings_without_data": 0,
    # A gateway that pings an idle connection more often is cut off.
    "grpc.http2.min_ping_interval_without_data_ms": 30_000,
    "grpc.max_concurrent_streams": 128,
    "grpc.so_reuseport": 0,
}


class Call:
    """One call of the gateway: the request, its metadata and the seconds its deadline left."""

    def __init__(self, method, request, context):
        self.method = method
        self.request = request
        self.metadata = dict(context.invocation_metadata())
        self.time_remaining = context.time_remaining()


class Server(gateway_rpc.GatewayUpstreamServicer):
    """Accepts every agent; a test may put its own answer for an agent id into the tables."""

    def __init__(self):
        self.register_answers = {}
        self.inventory_answers = {}
        self._calls = []
        self._changed = threading.Condition()
        self._server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=64), options=list(OPTIONS.items()))
        gateway_rpc.add_GatewayUpstreamServicer_to_server(self, self._server)
        self.port = tls.add_port(self._server)
        self._server.start()

    def stop(self):
        """Ends all calls and closes the port."""
        self._server.stop(grace=None).wait()

    def calls(self, method, matches=lambda request: True):
        """The calls of a method so far whose request matches, in order of arrival."""
        with self._changed:
            return [c for c in self._calls if c.method == method and matches(c.request)]

    def wait(self, method, matches=lambda request: True, count=1, timeout=10):
        """Waits until `count` calls match and returns the matching ones."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                found = [c for c in self._calls if c.method == method and matches(c.request)]
                if len(found) >= count:
                    return found
                left = deadline - time.monotonic()
                if left <= 0:
                    raise AssertionError(
                        f"{len(found)} of {count} expected {method} calls after {timeout} s")
                self._changed.wait(left)

    def _record(self, method, request, context):
        with self._changed:
            self._calls.append(Call(method, request, context))
            self._changed.notify_all()

    def ProxyRegister(self, request, context):
        self._record("ProxyRegister", request, context)
        answer = self.register_answers.get(request.info.agent_id)
        if isinstance(answer, grpc.StatusCode):
            context.abort(answer, "scripted by the test")
        if answer is not None:
            return answer
        return agent.RegisterResponse(
            session_id=new_session_id(), accepted=True, enrollment_status="enrolled")

    def BatchHeartbeat(self, request, context):
        self._record("BatchHeartbeat", request, context)
        return gateway.BatchHeartbeatResponse(acknowledged_count=len(request.heartbeats))

    def ProxyInventory(self, request, context):
        self._record("ProxyInventory", request, context)
        return self.inventory_answers.get(
            request.session_id, agent.InventoryAck(received=True))

    def NotifyStreamStatus(self, request, context):
        self._record("NotifyStreamStatus", request, context)
        return gateway.StreamStatusAck(acknowledged=True)

    def ForwardGuardianMessage(self, request, context):
        self._record("ForwardGuardianMessage", request, context)
        return gateway.ForwardGuardianAck(acknowledged=True)


def new_session_id():
    """A session id of the form the server mints."""
    return "gw-session-" + secrets.token_hex(16)
