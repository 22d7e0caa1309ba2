use super::*;
use crate::cluster::members::labels::Labels;

fn member(name: &str, is_private: bool, draining: bool, sessions: u64) -> Member {
    Member {
        name: name.into(),
        incarnation: 1,
        generation: 1,
        gossip: ([127, 0, 0, 1], 9_100).into(),
        labels: Labels {
            is_private,
            draining,
            sessions,
            ..Labels::default()
        },
    }
}

fn nodes(names: &[&str]) -> PublicNodes {
    PublicNodes::new(names.iter().map(|name| Arc::from(*name)))
}

fn cluster() -> [Member; 4] {
    [
        member("gw-a", false, false, 10),
        member("gw-b", false, true, 20),
        member("gw-p", true, false, 40),
        member("gw-q", true, true, 80),
    ]
}

#[tokio::test(start_paused = true)]
async fn vis_6_public_nodes_that_stay_may_be_named_and_it_is_told_when_there_are_none() {
    let metrics = Arc::new(Metrics::new("node").expect("families"));
    let public = Public::new(false, Duration::from_secs(5), &metrics);
    let mut seen = public.subscribe();
    let none = || metrics.cluster_no_live_public_node.get();
    let own = Arc::from("gw-own");
    public.follow(Some(&own), cluster().iter());
    assert_eq!(*seen.borrow_and_update(), nodes(&["gw-own", "gw-a"]));
    public.follow(Some(&own), cluster().iter());
    assert!(!seen.has_changed().expect("it lives"), "told once");
    public.follow(None, cluster()[1..].iter());
    assert_eq!(*seen.borrow_and_update(), nodes(&[]));
    assert_eq!(none(), 1);
    public.follow(None, cluster().iter());
    assert_eq!(*seen.borrow_and_update(), nodes(&["gw-a"]));
    assert_eq!(none(), 0);
}

#[test]
fn shift_2_agents_go_where_they_reach_and_where_nobody_stops() {
    let census = HashMap::from([("gw-a".into(), 15), ("gw-p".into(), 7)]);
    let of = |is_private| Elsewhere::of(is_private, cluster().iter(), &census);
    let public = Elsewhere {
        nodes: 1,
        sessions: 15,
        shares: true,
    };
    assert_eq!(of(false), public);
    // A label may know of more than was told so far.
    let private = Elsewhere {
        nodes: 2,
        sessions: 55,
        shares: false,
    };
    assert_eq!(of(true), private);
}
