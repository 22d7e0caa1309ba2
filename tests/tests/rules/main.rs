//! The rules of the contract, over real sockets: a real gateway, the server stub, hand-driven
//! peers. A test's name starts with the id of its rule; `docs/contract` says what the rule is.
//!
//! One binary for all themes, so that the whole suite links once.

mod agent_identity;
mod authorization;
mod cap;
mod certificates;
mod cluster;
mod command;
mod guardian;
mod heartbeat;
mod hostile_input;
mod inventory;
mod listener;
mod logs;
mod management;
mod old_faults;
mod origin;
mod owner;
mod register;
mod reload;
mod replay;
mod shutdown;
mod slow_peers;
mod subscribe;
mod support;
mod tls;
mod upstream;
mod upstream_tls;
mod verbatim;

use yuzu_tests::frames;
