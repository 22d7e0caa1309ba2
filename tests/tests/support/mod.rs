//! Helpers shared by the integration tests.

pub(crate) mod agent_server;
