//! What a node has of the system it runs on: sockets, names, threads for what blocks,
//! and the wall clock.
//!
//! Responsible for one place where they can be replaced: built with `--cfg yuzu_simulation`, as
//! `tests/sim` does, a node has a simulated network and its clock. A `cfg` and no feature, since it
//! takes something away: `--all-features` must build what is deployed. Must never decide anything.

#[cfg(not(yuzu_simulation))]
mod real;
#[cfg(yuzu_simulation)]
mod simulated;

#[cfg(not(yuzu_simulation))]
pub(crate) use real::{
    TcpListener, TcpStream, UdpSocket, datagrams, is_local, listen, lookup_host, set_user_timeout,
    since_epoch, spawn_blocking,
};
#[cfg(yuzu_simulation)]
pub(crate) use simulated::{
    TcpListener, TcpStream, UdpSocket, datagrams, is_local, listen, lookup_host, set_user_timeout,
    since_epoch, spawn_blocking,
};
