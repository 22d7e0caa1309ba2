"""The generated modules of the contract that this run speaks: `current` or `newer`."""

import os
import pathlib
import sys

NAME = os.environ.get("INTEROP_CONTRACT", "current")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "out" / "contract" / NAME))

from yuzu.agent.v1 import agent_pb2 as agent  # noqa: E402
from yuzu.agent.v1 import agent_pb2_grpc as agent_rpc  # noqa: E402
from yuzu.common.v1 import common_pb2 as common  # noqa: E402
from yuzu.gateway.v1 import gateway_pb2 as gateway  # noqa: E402
from yuzu.gateway.v1 import gateway_pb2_grpc as gateway_rpc  # noqa: E402
from yuzu.server.v1 import management_pb2 as management  # noqa: E402
from yuzu.server.v1 import management_pb2_grpc as management_rpc  # noqa: E402

RUNNING = agent.CommandResponse.RUNNING
SUCCESS = agent.CommandResponse.SUCCESS
FAILURE = agent.CommandResponse.FAILURE

__all__ = [
    "NAME", "RUNNING", "SUCCESS", "FAILURE", "agent", "agent_rpc", "common", "gateway",
    "gateway_rpc", "management", "management_rpc",
]
