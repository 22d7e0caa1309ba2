use std::collections::BTreeSet;

use prometheus::core::Collector;

use super::*;

#[test]
fn gen_4_every_reason_has_its_series_from_the_start() {
    let metrics = Metrics::new("node").expect("families");
    let reasons = |families: Vec<prometheus::proto::MetricFamily>| -> BTreeSet<String> {
        let series = families.iter().flat_map(|family| family.get_metric());
        series
            .map(|one| one.get_label()[0].value().to_owned())
            .collect()
    };
    let expected = |labels: &[&str]| labels.iter().map(|label| (*label).to_owned()).collect();
    let links: BTreeSet<String> = expected(Failure::LABELS);
    assert_eq!(
        reasons(metrics.cluster_connect_failures_total.collect()),
        links
    );
    let datagrams: BTreeSet<String> = expected(&seal::Rejected::LABELS);
    assert_eq!(
        reasons(metrics.cluster_datagrams_rejected_total.collect()),
        datagrams
    );
}
