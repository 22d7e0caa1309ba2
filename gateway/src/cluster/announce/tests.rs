use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::sleep;

use super::*;
use crate::edge::ConnectionKey;
use crate::session::testing::{connect, context};
use crate::session::{OwnerContext, Session};

/// Long enough for a walk over what these tests hold.
const WALK: Duration = Duration::from_secs(1);

fn nodes(names: &[&str]) -> PublicNodes {
    PublicNodes::new(names.iter().map(|name| Arc::from(*name)))
}

struct Private {
    owners: Arc<OwnerContext>,
    names: Names,
    public: watch::Sender<PublicNodes>,
}

impl Private {
    fn start() -> Self {
        let owners = context();
        let names = Names::private("gw-p", Duration::from_secs(5));
        let public = watch::Sender::default();
        let (wanted, registry) = (public.subscribe(), &owners.registry);
        tokio::spawn(Announcer::new(&names, wanted, registry, &owners.notifier).run());
        Self {
            owners,
            names,
            public,
        }
    }

    fn agents(&self, count: usize) -> Vec<Arc<Session>> {
        let agent = |number: usize| {
            let (id, session) = (format!("agent-{number:05}"), format!("s-{number}"));
            connect(&self.owners.registry, &id, &session, ConnectionKey::next())
        };
        (0..count).map(agent).collect()
    }

    async fn becomes(&self, names: &[&str]) {
        self.public.send_replace(nodes(names));
        sleep(WALK).await;
    }
}

/// Those that were asked since the last look.
fn asked(sessions: &[Arc<Session>]) -> Vec<&str> {
    let asked = sessions
        .iter()
        .filter(|session| session.asked_to_announce().now_or_never().is_some());
    asked.map(|session| &**session.agent_id()).collect()
}

#[tokio::test(start_paused = true)]
async fn vis_5_exactly_the_agents_whose_gateway_changes_are_announced_again() {
    let private = Private::start();
    // More than two pages.
    let sessions = private.agents(1_200);
    private.becomes(&["gw-a", "gw-b"]).await;
    assert_eq!(
        asked(&sessions).len(),
        1_200,
        "they had the node's own name"
    );
    let before: Vec<_> = sessions
        .iter()
        .map(|session| private.names.of(session.agent_id()))
        .collect();
    private.becomes(&["gw-a", "gw-b", "gw-c"]).await;
    let renamed = sessions.iter().zip(before);
    let renamed = renamed.filter(|(session, had)| private.names.of(session.agent_id()) != *had);
    let renamed: Vec<_> = renamed.map(|(session, _)| &**session.agent_id()).collect();
    assert_eq!(asked(&sessions), renamed);
    assert!((300..500).contains(&renamed.len()), "{}", renamed.len());
    private.becomes(&["gw-a", "gw-b", "gw-c"]).await;
    assert_eq!(asked(&sessions), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn vis_5_a_change_during_a_walk_leaves_nobody_under_an_old_name() {
    let private = Private::start();
    let sessions = private.agents(1_200);
    private.becomes(&["gw-a"]).await;
    asked(&sessions);
    private.public.send_replace(nodes(&["gw-b"]));
    // The first page has been looked at.
    sleep(TURN / 2).await;
    assert_eq!(asked(&sessions).len(), PAGE);
    private.becomes(&["gw-c"]).await;
    assert_eq!(asked(&sessions).len(), 1_200);
    assert_eq!(&*private.names.of("agent-00000"), "gw-c");
}

#[tokio::test(start_paused = true)]
async fn vis_5_a_walk_does_not_run_ahead_of_the_notices() {
    let private = Private::start();
    let sessions = private.agents(2_000);
    for session in &sessions[..NOTICES_AHEAD] {
        // This node has no server: what it is to be told waits.
        private.owners.notifier.send(crate::notify::Notice {
            agent_id: Arc::clone(session.agent_id()),
            session_id: Arc::clone(&session.session_id),
            stream_home_id: Arc::clone(&session.stream_home_id),
            event: crate::notify::Event::Connected,
            peer: None,
        });
    }
    private.becomes(&["gw-a"]).await;
    assert_eq!(asked(&sessions).len(), PAGE);
    // A set that is wanted meanwhile is in force at once.
    private.becomes(&["gw-b"]).await;
    assert_eq!(asked(&sessions).len(), PAGE);
    assert_eq!(&*private.names.of("agent-00000"), "gw-b");
}
