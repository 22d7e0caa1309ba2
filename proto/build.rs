//! Compiles the contracts with a pure-Rust compiler, so that no `protoc` is needed.

use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

const FILES: [&str; 7] = [
    "yuzu/common/v1/common.proto",
    "yuzu/agent/v1/agent.proto",
    "yuzu/gateway/v1/gateway.proto",
    "yuzu/server/v1/management.proto",
    "yuzu/node/v1/agents.proto",
    "yuzu/node/v1/forward.proto",
    "yuzu/node/v1/node.proto",
];

/// Messages that hold what LOG-3 forbids to print; `src/redact.rs` writes their `Debug`.
const REDACTED: [&str; 16] = [
    ".yuzu.common.v1.ErrorDetail",
    ".yuzu.agent.v1.RegisterRequest",
    ".yuzu.agent.v1.RegisterResponse",
    ".yuzu.agent.v1.HeartbeatRequest",
    ".yuzu.agent.v1.CommandRequest",
    ".yuzu.agent.v1.CommandResponse",
    ".yuzu.agent.v1.InventoryReport",
    ".yuzu.gateway.v1.BatchHeartbeatRequest",
    ".yuzu.gateway.v1.BatchHeartbeatResponse",
    ".yuzu.gateway.v1.StreamStatusNotification",
    ".yuzu.server.v1.AgentConnected",
    ".yuzu.server.v1.QueryInventoryResponse",
    ".yuzu.node.v1.AgentRow",
    ".yuzu.node.v1.ForwardDispatch",
    ".yuzu.node.v1.ForwardAnswers",
    ".yuzu.node.v1.ForwardOffer",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    // The tests generate random messages from these.
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out_dir.join("contracts.binpb"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".")
        .emit_rerun_if_changed(false)
        .skip_debug(REDACTED)
        .compile_fds(descriptors)?;
    Ok(())
}
