"""An operator on gRPC C-core: the ManagementService client."""

import tls
from contract import agent, management, management_rpc


class Operator:
    """Sends commands and asks for agents through a gateway's management listener."""

    def __init__(self, address, own="server"):
        self._channel = tls.channel(address, [("grpc.use_local_subchannel_pool", 1)], own)
        self.stub = management_rpc.ManagementServiceStub(self._channel)

    def start(self, agent_ids, command_id, timeout_seconds=10, **fields):
        """Dispatches a command and returns the stream of answers; `fields` of CommandRequest."""
        command = agent.CommandRequest(
            **({"command_id": command_id, "plugin": "os", "action": "uptime"} | fields))
        request = management.SendCommandRequest(
            agent_ids=agent_ids, command=command, timeout_seconds=timeout_seconds)
        return self.stub.SendCommand(request, timeout=timeout_seconds + 20)

    def send(self, agent_ids, command_id, timeout_seconds=10, **fields):
        """Dispatches a command and returns all answers, when the stream has ended with OK."""
        return list(self.start(agent_ids, command_id, timeout_seconds, **fields))

    def list_agents(self, limit=100):
        """All agents of the gateway, gathered page by page."""
        agents, cursor = [], ""
        while True:
            request = management.ListAgentsRequest(limit=limit, cursor=cursor)
            page = self.stub.ListAgents(request, timeout=10)
            agents += page.agents
            cursor = page.next_cursor
            if not cursor:
                return agents

    def get_agent(self, agent_id):
        """Summary and plugins of one agent."""
        return self.stub.GetAgent(management.GetAgentRequest(agent_id=agent_id), timeout=10)

    def query_inventory(self, **fields):
        """The gateway's own summary of connected agents."""
        return self.stub.QueryInventory(management.QueryInventoryRequest(**fields), timeout=10)

    def watch(self, agent_ids):
        """The stream of connects and disconnects of these agents."""
        return self.stub.WatchEvents(
            management.WatchEventsRequest(agent_ids=agent_ids), timeout=60)

    def close(self):
        """Drops the connection."""
        self._channel.close()
