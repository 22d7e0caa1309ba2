//! What a plan made by hand shows, in the simulation's time.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::sleep;
use yuzu_proto::server::v1::agent_event::Event;
use yuzu_sim::caller::connect;
use yuzu_sim::judge::{Judge, scrape};
use yuzu_sim::ledger::{Ledger, now};
use yuzu_sim::plan::{Fault, NODES, Place, Plan, SITES, What};
use yuzu_sim::{randomness, world};

const DEAD: Duration = Duration::from_secs(10);
const BACK: Duration = Duration::from_secs(25);
const REACHABLE: Duration = Duration::from_secs(40);
/// `cluster.dead_after_ms`.
const DEAD_AFTER: Duration = Duration::from_secs(5);

/// The agents that come to the node that dies, and to no other while it is dead.
fn concerned() -> impl Iterator<Item = String> {
    (SITES..2 * SITES).map(world::agent_id)
}

/// Writes down what the two other nodes say of these agents.
fn watch(judge: Judge) -> Pin<Box<dyn Future<Output = turmoil::Result>>> {
    Box::pin(async move {
        sleep(Duration::from_secs(8)).await;
        for node in [0, 2] {
            tokio::task::spawn_local(follow(judge.clone(), node));
        }
        sleep((DEAD + DEAD_AFTER + Duration::from_secs(2)).saturating_sub(now())).await;
        for node in [0, 2] {
            let metrics = scrape(&judge.nodes[node]).await.expect("metrics");
            let rows = metrics.value("yuzu_gw_adjacency_agents", &[]);
            let line = format!("rows at {node}: {}", rows.unwrap_or_default());
            judge.ledger.say(now(), line);
        }
        sleep(Duration::from_secs(60)).await;
        Ok(())
    })
}

async fn follow(judge: Judge, node: usize) {
    let operator = connect(&judge.nodes[node]).await.expect("a connection");
    let ids: Vec<_> = concerned().collect();
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    let mut events = operator.watch(&ids).await.expect("a stream of events");
    while let Ok(Some(event)) = events.receiver.message().await {
        let event = <yuzu_proto::server::v1::AgentEvent as prost::Message>::decode(event);
        let event = event.expect("an event");
        let what = match event.event {
            Some(Event::Connected(_)) => "came",
            Some(Event::Disconnected(_)) => "went",
            other => panic!("{other:?}"),
        };
        let line = format!("seen at {node}: {} {what}", event.agent_id);
        judge.ledger.say(now(), line);
    }
}

/// Lines of the log that contain a text, with their times.
fn lines(ledger: &Ledger, text: &str) -> Vec<(Duration, String)> {
    let book = ledger.read();
    let found = book.log.lines().filter(|line| line.contains(text));
    let parts = found.map(|line| line.trim_start().split_once(' ').expect("a time"));
    let line = |(at, what): (&str, &str)| {
        let seconds = at.parse().expect("a time");
        (Duration::from_secs_f64(seconds), what.to_owned())
    };
    parts.map(line).collect()
}

/// A machine loses power, and its agents can reach no other node: nobody is told, so the others have
/// its silence alone to go by.
#[test]
fn mesh_5_agents_of_a_node_that_falls_silent_are_gone_within_dead_after() {
    randomness::seed_this_thread(5);
    let power = Fault {
        what: What::PowerLoss(Place::Node(1)),
        from: DEAD,
        until: BACK,
    };
    let cuts = (0..SITES).flat_map(|site| {
        (0..NODES).map(move |node| Fault {
            what: What::Partition(Place::Site(site), Place::Node(node)),
            // Its end would be that of the power's loss, which has these links for a moment.
            from: DEAD + Duration::from_millis(50),
            until: REACHABLE,
        })
    });
    let plan = Plan {
        agents: 3 * SITES,
        faults: cuts.chain([power]).collect(),
    };
    let ledger = Ledger::new(false);
    world::live(5, &plan, &ledger, watch).expect("every host lives");
    let ids: Vec<_> = concerned().collect();
    for node in [0, 2] {
        let seen = lines(&ledger, &format!("seen at {node}: "));
        let (gone, back): (Vec<_>, Vec<_>) = seen.iter().partition(|(at, _)| *at < BACK);
        let mut gone_ids: Vec<_> = gone.iter().map(|(_, what)| &**what).collect();
        gone_ids.sort_unstable();
        let expected: Vec<_> = ids
            .iter()
            .map(|id| format!("seen at {node}: {id} went"))
            .collect();
        assert_eq!(gone_ids, expected);
        let in_time = |at: &Duration| (DEAD..DEAD + DEAD_AFTER).contains(at);
        assert!(gone.iter().all(|(at, _)| in_time(at)), "{gone:?}");
        // Its next life holds nobody until they come: what the last one told does not count.
        assert_eq!(back.len(), ids.len(), "{back:?}");
        let came = |(at, what): &&(Duration, String)| *at > REACHABLE && what.ends_with("came");
        assert!(back.iter().all(came), "{back:?}");
    }
    // The agents of the two others, as they tell each other: their streams are held or gone.
    for node in [0, 2] {
        let rows = lines(&ledger, &format!("rows at {node}: "));
        let [(_, rows)] = &rows[..] else {
            panic!("{rows:?}");
        };
        assert!(
            [
                format!("rows at {node}: 0"),
                format!("rows at {node}: {SITES}")
            ]
            .contains(rows),
            "{rows}"
        );
    }
}
