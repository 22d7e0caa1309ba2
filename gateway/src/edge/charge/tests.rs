use super::*;
use crate::edge::connection::Signal;
use crate::edge::testing::connection_with;

const MIB: usize = 1 << 20;

/// A connection that may hold `own` bytes, at a node with this room.
fn connection(own: usize, node: &Arc<NodeMemory>) -> Arc<Connection> {
    connection_with(|limits| {
        limits.max_memory_bytes = own;
        limits.node_memory = Arc::clone(node);
    })
}

fn held(node: &NodeMemory) -> usize {
    node.held.load(Ordering::Relaxed)
}

#[test]
fn lsn_6_a_connection_over_its_budget_is_killed_and_counted() {
    let c = connection(1_000, &NodeMemory::new(MIB));
    let mut a = Charge::of_request(&c);
    let mut b = Charge::of_stream(&c);
    a.set(600).unwrap();
    b.set(400).unwrap();
    a.set(500).unwrap();
    assert_eq!(b.set(501), Err(OverBudget::Connection));
    assert_eq!(a.set(501), Err(OverBudget::Connection));
    assert_eq!(c.metrics().grpc_connection_killed_total.get(), 1);
    let closed = &c.metrics().listener_closed_total;
    assert_eq!(closed.with_label_values(&["over_budget"]).get(), 1);
    assert!(!c.signal(Signal::Kill), "it was asked for before");
    drop((a, b));
    assert!(c.hold(0, 1_000), "nothing is held any more");
}

#[test]
fn lsn_16_a_request_without_room_at_the_node_is_refused_and_its_connection_stays() {
    let node = NodeMemory::new(8 * MIB);
    let (one, other) = (connection(32 * MIB, &node), connection(32 * MIB, &node));
    let mut first = Charge::of_request(&one);
    first.set(4 * MIB).unwrap();
    let mut second = Charge::of_request(&other);
    second.set(MIB).unwrap();
    assert_eq!(second.set(2 * MIB + 1), Err(OverBudget::Node));
    assert_eq!(tonic::Status::from(OverBudget::Node).code() as i32, 8);
    assert_eq!(held(&node), 5 * MIB, "what was refused is not charged");
    let metrics = other.metrics();
    assert_eq!(metrics.grpc_memory_refused_total.get(), 1);
    assert_eq!(metrics.grpc_connection_killed_total.get(), 0);
    assert!(other.signal(Signal::Kill), "nobody has asked it to end");
    second.set(2 * MIB).unwrap();
    drop(first);
    second.set(6 * MIB).unwrap();
    drop(second);
    assert_eq!(held(&node), 0);
}

#[test]
fn lsn_16_a_quarter_of_the_room_is_left_to_small_requests() {
    let node = NodeMemory::new(8 * MIB);
    let c = connection(32 * MIB, &node);
    let mut large = Charge::of_request(&c);
    large.set(6 * MIB).unwrap();
    assert_eq!(Charge::of_request(&c).set(SMALL + 1), Err(OverBudget::Node));
    // 2 MiB in pieces of 64 KiB.
    let mut small: Vec<_> = (0..32).map(|_| Charge::of_request(&c)).collect();
    for charge in &mut small {
        charge.set(SMALL).unwrap();
    }
    assert_eq!(Charge::of_request(&c).set(1), Err(OverBudget::Node));
    drop(small);
    drop(large);
    assert_eq!(held(&node), 0);
}

#[test]
fn lsn_16_the_stream_of_a_session_is_never_refused_for_what_others_hold() {
    let node = NodeMemory::new(MIB);
    let c = connection(32 * MIB, &node);
    let mut request = Charge::of_request(&c);
    request.set(3 * MIB / 4).unwrap();
    let mut stream = Charge::of_stream(&c);
    stream.set(4 * MIB).unwrap();
    assert_eq!(held(&node), 3 * MIB / 4);
}

#[test]
fn lsn_16_a_reload_changes_the_room_and_takes_nothing_back() {
    let node = NodeMemory::new(8 * MIB);
    let c = connection(32 * MIB, &node);
    let mut held = Charge::of_request(&c);
    held.set(6 * MIB).unwrap();
    node.retune(4 * MIB);
    assert_eq!(Charge::of_request(&c).set(1), Err(OverBudget::Node));
    node.retune(12 * MIB);
    held.set(9 * MIB).unwrap();
}
