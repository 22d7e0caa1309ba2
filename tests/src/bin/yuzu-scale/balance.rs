//! Accounts: what went in is what came out and what is left.

use crate::report::Report;

/// One account.
#[derive(Debug)]
pub(crate) struct Account {
    name: &'static str,
    whole: (&'static str, u64),
    parts: Vec<(&'static str, u64)>,
}

impl Account {
    pub(crate) fn new(name: &'static str, what: &'static str, whole: u64) -> Self {
        Self {
            name,
            whole: (what, whole),
            parts: Vec::new(),
        }
    }

    /// With a part of the whole.
    pub(crate) fn part(mut self, what: &'static str, count: u64) -> Self {
        self.parts.push((what, count));
        self
    }

    /// By how much the parts miss the whole, in either direction.
    pub(crate) fn difference(&self) -> u64 {
        let parts: u64 = self.parts.iter().map(|(_, count)| count).sum();
        self.whole.1.abs_diff(parts)
    }

    /// Tells every number of it, and that nothing may be missing.
    pub(crate) fn judge(&self, report: &mut Report) {
        for (what, count) in std::iter::once(&self.whole).chain(&self.parts) {
            report.count(&format!("{}: {what}", self.name), *count);
        }
        let name = format!("{}: what does not add up", self.name);
        report.exactly(&name, self.difference(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_balances_when_its_parts_are_the_whole() {
        let account = |closed| {
            Account::new("connections", "opened", 10)
                .part("closed", closed)
                .part("open", 3)
        };
        for (closed, difference) in [(7, 0), (6, 1), (9, 2)] {
            assert_eq!(account(closed).difference(), difference);
            let mut report = Report::default();
            account(closed).judge(&mut report);
            assert_eq!(report.holds(), difference == 0);
        }
        assert_eq!(Account::new("nothing", "in", 0).difference(), 0);
    }
}
