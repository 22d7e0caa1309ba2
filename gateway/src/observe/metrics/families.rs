//! Turns one declaration of a family into a field, its documentation, its HELP text and its
//! registration.
//!
//! Responsible for the prefix, the label `node` and the series that exist at 0 from the start
//! (GEN-4). Must never know a family by name: that is the list in [`super`].

use prometheus::core::Collector;
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, Result,
};

/// Declares `Metrics`: the doc comment of a family is its HELP text, the name of its field is its
/// name without the prefix, and the call after `=` is the method of [`Families`] that makes it.
macro_rules! families {
    (
        $(#[$outer:meta])*
        pub struct $all:ident;
        $( #[doc = $help:literal] $name:ident: $kind:ty = $make:ident($($arg:expr),*); )*
    ) => {
        $(#[$outer])*
        #[derive(Debug)]
        pub struct $all {
            /// What `/metrics` renders.
            pub registry: prometheus::Registry,
            /// Maps a plugin name to the value of the label `plugin` (CMD-23).
            pub plugins: $crate::observe::metrics::PluginLabels,
            $( #[doc = $help] pub $name: $kind, )*
        }

        impl $all {
            /// Registers every family in a fresh registry. `node` is the gateway's node name, the
            /// value of the label `node`.
            ///
            /// # Errors
            /// Only for a declaration that the library refuses, which any call shows.
            pub fn new(node: &str) -> prometheus::Result<Self> {
                let registry = prometheus::Registry::new();
                let families = Families { registry: &registry, node };
                $( let $name = families.$make(stringify!($name), $help.trim(), $($arg),*)?; )*
                Ok(Self { registry, plugins: Default::default(), $($name),* })
            }
        }
    };
}
pub(super) use families;

/// Registers families under one prefix.
pub(super) struct Families<'a> {
    pub(super) registry: &'a Registry,
    pub(super) node: &'a str,
}

impl Families<'_> {
    fn opts(name: &str, help: &str) -> Opts {
        Opts::new(format!("yuzu_gw_{name}"), help)
    }

    fn node_opts(&self, name: &str, help: &str) -> Opts {
        Self::opts(name, help).const_label("node", self.node)
    }

    fn add<C: Collector + Clone + 'static>(&self, collector: Result<C>) -> Result<C> {
        let collector = collector?;
        self.registry.register(Box::new(collector.clone()))?;
        Ok(collector)
    }

    pub(super) fn counter(&self, name: &str, help: &str) -> Result<IntCounter> {
        self.add(IntCounter::with_opts(Self::opts(name, help)))
    }

    pub(super) fn node_counter(&self, name: &str, help: &str) -> Result<IntCounter> {
        self.add(IntCounter::with_opts(self.node_opts(name, help)))
    }

    /// A counter with labels; each row of `closed` is a series that exists at 0.
    pub(super) fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        closed: &[&[&str]],
    ) -> Result<IntCounterVec> {
        let family = self.add(IntCounterVec::new(Self::opts(name, help), labels))?;
        for values in closed {
            family.get_metric_with_label_values(values)?;
        }
        Ok(family)
    }

    /// A counter with two labels; each pair of their values is a series that exists at 0.
    pub(super) fn counter_grid(
        &self,
        name: &str,
        help: &str,
        labels: [&str; 2],
        first: &[&str],
        second: &[&str],
    ) -> Result<IntCounterVec> {
        let family = self.add(IntCounterVec::new(Self::opts(name, help), &labels))?;
        for one in first {
            for other in second {
                family.get_metric_with_label_values(&[*one, *other])?;
            }
        }
        Ok(family)
    }

    pub(super) fn gauge(&self, name: &str, help: &str) -> Result<IntGauge> {
        self.add(IntGauge::with_opts(Self::opts(name, help)))
    }

    pub(super) fn node_gauge(&self, name: &str, help: &str) -> Result<IntGauge> {
        self.add(IntGauge::with_opts(self.node_opts(name, help)))
    }

    pub(super) fn ratio(&self, name: &str, help: &str) -> Result<Gauge> {
        self.add(Gauge::with_opts(Self::opts(name, help)))
    }

    pub(super) fn node_ratio(&self, name: &str, help: &str) -> Result<Gauge> {
        self.add(Gauge::with_opts(self.node_opts(name, help)))
    }

    /// A gauge with one label; each value in `closed` is a series that exists at 0.
    pub(super) fn gauges(
        &self,
        name: &str,
        help: &str,
        label: &str,
        closed: &[&str],
    ) -> Result<IntGaugeVec> {
        let family = self.add(IntGaugeVec::new(Self::opts(name, help), &[label]))?;
        for value in closed {
            family.get_metric_with_label_values(&[*value])?;
        }
        Ok(family)
    }

    /// A gauge with several labels, without a series yet.
    pub(super) fn labelled_gauges(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<IntGaugeVec> {
        self.add(IntGaugeVec::new(Self::opts(name, help), labels))
    }

    /// A gauge with the label `node` and one more, without a series yet.
    pub(super) fn node_gauges(&self, name: &str, help: &str, label: &str) -> Result<IntGaugeVec> {
        self.add(IntGaugeVec::new(self.node_opts(name, help), &[label]))
    }

    pub(super) fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram> {
        let opts = HistogramOpts::from(Self::opts(name, help)).buckets(buckets.to_vec());
        self.add(Histogram::with_opts(opts))
    }

    pub(super) fn node_histogram(
        &self,
        name: &str,
        help: &str,
        buckets: &[f64],
    ) -> Result<Histogram> {
        let opts = HistogramOpts::from(self.node_opts(name, help)).buckets(buckets.to_vec());
        self.add(Histogram::with_opts(opts))
    }

    /// A histogram with labels, without a series yet.
    pub(super) fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> Result<HistogramVec> {
        let opts = HistogramOpts::from(Self::opts(name, help)).buckets(buckets.to_vec());
        self.add(HistogramVec::new(opts, labels))
    }
}
