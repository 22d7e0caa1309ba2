"""An agent on gRPC C-core, with the channel settings of the real one."""

import queue
import threading

import grpc

import tls
from contract import RUNNING, SUCCESS, agent, agent_rpc

SESSION_HEADER = "x-yuzu-session-id"
CHANNEL = {
    "grpc.keepalive_time_ms": 60_000,
    "grpc.keepalive_timeout_ms": 20_000,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.http2.max_pings_without_data": 0,
    # Agents of one process would otherwise share a connection.
    "grpc.use_local_subchannel_pool": 1,
}


def run_and_succeed(command):
    """What the real agent sends for a command: output, the timing line, the terminal frame."""
    def frame(status, output):
        return agent.CommandResponse(
            command_id=command.command_id, status=status, output=output)
    yield frame(RUNNING, f"{command.plugin}.{command.action} at work")
    yield frame(RUNNING, "__timing__|exec_ms=1")
    yield frame(SUCCESS, "done")


class Agent:
    """One agent on its own connection. `answer` turns a command into the frames sent back."""

    def __init__(self, address, agent_id, answer=run_and_succeed, **channel):
        self.agent_id = agent_id
        self.session_id = ""
        self.commands = queue.Queue()
        self._answer = answer
        self._channel = tls.channel(address, list((CHANNEL | channel).items()))
        self._stub = agent_rpc.AgentServiceStub(self._channel)
        self._frames = queue.Queue()
        self._stream = None
        self._reader = None
        self.stream_status = None

    def register(self, timeout=30, metadata=(), **fields):
        """Registers and keeps the session id. `fields` are those of RegisterRequest."""
        info = agent.AgentInfo(agent_id=self.agent_id, hostname=f"{self.agent_id}.example")
        info.plugins.add(name="os", version="1.0")
        request = agent.RegisterRequest(**({"info": info} | fields))
        response = self._stub.Register(request, timeout=timeout, metadata=metadata)
        self.session_id = response.session_id
        return response

    def subscribe(self, session_id=None):
        """Opens the command stream and returns when its headers have come, or its refusal."""
        header = ((SESSION_HEADER, self.session_id if session_id is None else session_id),)
        self._open_stream(header)

    def subscribe_without_session(self):
        """Opens the command stream without the session header."""
        self._open_stream(())

    def _open_stream(self, metadata):
        self._stream = self._stub.Subscribe(iter(self._frames.get, None), metadata=metadata)
        headers = threading.Event()
        self._reader = threading.Thread(
            target=self._read, args=(self._stream, headers), daemon=True)
        self._reader.start()
        assert headers.wait(5), f"no answer to the Subscribe of {self.agent_id}"

    def _read(self, stream, headers):
        try:
            stream.initial_metadata()
            headers.set()
            for command in stream:
                self.commands.put(command)
                for frame in self._answer(command):
                    self._frames.put(frame)
        except grpc.RpcError:
            pass
        self.stream_status = stream.code()

    def send(self, frame):
        """Puts one frame on the command stream, asked for or not."""
        self._frames.put(frame)

    def heartbeat(self, session_id=None, timeout=10, **fields):
        """One heartbeat; `fields` are those of HeartbeatRequest."""
        session_id = self.session_id if session_id is None else session_id
        request = agent.HeartbeatRequest(session_id=session_id, **fields)
        return self._stub.Heartbeat(request, timeout=timeout)

    def report_inventory(self, timeout=30, **fields):
        """One inventory report; `fields` are those of InventoryReport."""
        request = agent.InventoryReport(**({"session_id": self.session_id} | fields))
        return self._stub.ReportInventory(request, timeout=timeout)

    def check_for_update(self):
        """Asks for an update of the agent."""
        request = agent.CheckForUpdateRequest(agent_id=self.agent_id)
        return self._stub.CheckForUpdate(request, timeout=10)

    def execute_command(self):
        """Calls ExecuteCommand and returns the frames it yields."""
        return list(self._stub.ExecuteCommand(agent.CommandRequest(command_id="x"), timeout=10))

    def download_update(self):
        """Calls DownloadUpdate and returns the chunks it yields."""
        request = agent.DownloadUpdateRequest(agent_id=self.agent_id)
        return list(self._stub.DownloadUpdate(request, timeout=10))

    def half_close(self):
        """Ends the sending side of the command stream and waits for the gateway to end its own."""
        self._frames.put(None)
        self.wait_stream_end()

    def wait_stream_end(self, timeout=15):
        """Waits until the command stream has ended and returns its status."""
        self._reader.join(timeout)
        assert not self._reader.is_alive(), f"the stream of {self.agent_id} is still open"
        return self.stream_status

    def close(self):
        """Drops the connection."""
        self._frames.put(None)
        self._channel.close()
