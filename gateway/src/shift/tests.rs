use std::sync::atomic::AtomicUsize;

use super::*;
use crate::edge::ConnectionKey;
use crate::session::testing::{connect, context};
use crate::upstream::tests::metric;

/// A public node with 200 agents beside so many others, which hold none.
async fn shifter(others: &Arc<AtomicUsize>) -> (Shifter, Arc<OwnerContext>) {
    let owners = context();
    for number in 0..200 {
        let (id, session) = (format!("agent-{number}"), format!("s-{number}"));
        connect(&owners.registry, &id, &session, ConnectionKey::next());
    }
    let others = Arc::clone(others);
    let eyes = Eyes {
        memory: Box::new(|| false),
        elsewhere: Box::new(move || Elsewhere {
            nodes: others.load(Ordering::Relaxed),
            sessions: 0,
            shares: true,
        }),
    };
    let config = config::Shift {
        min_sessions: 20,
        ..config::Shift::default()
    };
    let shifter = Shifter::start(config, &owners, eyes);
    tokio::task::yield_now().await;
    (shifter, owners)
}

fn migrations(owners: &OwnerContext, reason: &str) -> Option<f64> {
    let series = format!("agent_migrations_total{{reason=\"{reason}\"}}");
    metric(&owners.metrics, &series)
}

#[test]
fn gen_4_every_reason_has_its_series_from_the_start() {
    let metrics = crate::observe::metrics::Metrics::new("node").expect("families");
    for reason in Reason::ALL {
        for family in ["goaway_sent_total", "agent_migrations_total"] {
            let series = format!("{family}{{reason=\"{}\"}}", reason.label());
            assert_eq!(metric(&metrics, &series), Some(0.0), "{series}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn shift_2_agents_move_as_soon_as_there_is_another_node() {
    let others = Arc::new(AtomicUsize::new(0));
    let (_shifter, owners) = shifter(&others).await;
    tokio::time::sleep(LOOK * 100).await;
    assert_eq!(migrations(&owners, "imbalance"), Some(0.0), "it is alone");
    others.store(1, Ordering::Relaxed);
    tokio::time::sleep(LOOK * 10).await;
    // Their streams do not end here: no owner lives in this test.
    assert_eq!(migrations(&owners, "imbalance"), Some(100.0));
    assert_eq!(
        owners
            .metrics
            .goaway_sent_total
            .with_label_values(&["imbalance"])
            .get(),
        100
    );
}

#[tokio::test(start_paused = true)]
async fn shift_2_a_stop_asks_everybody_and_lasts_no_longer_than_it_may() {
    let others = Arc::new(AtomicUsize::new(1));
    let (shifter, owners) = shifter(&others).await;
    // Somebody whose owner does not end.
    let session = owners.registry.route("agent-7").expect("an agent");
    owners.roster.add(&session);
    let start = Instant::now();
    shifter.drain(start + Duration::from_secs(8)).await;
    assert_eq!(start.elapsed(), Duration::from_secs(8));
    let asked = migrations(&owners, "draining").zip(migrations(&owners, "imbalance"));
    assert_eq!(
        asked.map(|(draining, before)| draining + before),
        Some(200.0)
    );
}

#[tokio::test(start_paused = true)]
async fn shift_2_a_stop_of_the_last_node_waits_for_nothing() {
    let others = Arc::new(AtomicUsize::new(0));
    let (shifter, owners) = shifter(&others).await;
    let start = Instant::now();
    shifter.drain(start + Duration::from_secs(8)).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(migrations(&owners, "draining"), Some(0.0));
}

#[tokio::test(start_paused = true)]
async fn reload_3_another_configuration_is_in_force_at_once() {
    let others = Arc::new(AtomicUsize::new(0));
    let (shifter, owners) = shifter(&others).await;
    shifter.retune(config::Shift {
        min_sessions: 150,
        ..config::Shift::default()
    });
    others.store(1, Ordering::Relaxed);
    tokio::time::sleep(LOOK * 20).await;
    assert_eq!(migrations(&owners, "imbalance"), Some(50.0));
}
