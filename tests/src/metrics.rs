//! Reads the Prometheus text format.
//!
//! Must never fill in a series that is not there: absent and 0 are different answers.

/// One scrape.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    series: Vec<Series>,
}

/// One line: a name, its labels and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Full name, such as `yuzu_gw_agents_current` or `..._bucket`.
    pub name: String,
    /// Labels in the order of the line.
    pub labels: Vec<(String, String)>,
    /// The value.
    pub value: f64,
}

impl Metrics {
    /// Reads a scrape.
    ///
    /// # Errors
    /// The first line that is none of the format.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let series = lines.map(|line| line_of(line).ok_or_else(|| line.to_owned()));
        Ok(Self {
            series: series.collect::<Result<_, _>>()?,
        })
    }

    /// The sum over the series of this name that carry all these labels; `None` when there is
    /// no such series.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let carries = |series: &&Series| {
            series.name == name
                && labels
                    .iter()
                    .all(|(k, v)| series.labels.iter().any(|(a, b)| a == k && b == v))
        };
        let mut found = self
            .series
            .iter()
            .filter(carries)
            .map(|series| series.value)
            .peekable();
        found.peek()?;
        Some(found.sum())
    }

    /// All series of this name.
    pub fn of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Series> {
        self.series.iter().filter(move |series| series.name == name)
    }
}

fn line_of(line: &str) -> Option<Series> {
    let name_end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels_of(rest)?,
        None => (Vec::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Series {
        name: name.into(),
        labels,
        value,
    })
}

/// The labels and what follows the closing brace.
fn labels_of(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (key, after) = rest.split_once("=\"")?;
        let (value, after) = quoted(after)?;
        labels.push((key.trim().to_owned(), value));
        rest = after;
    }
}

/// Text up to an unescaped quote, unescaped.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str =
        "# HELP a b\n# TYPE a counter\na{x=\"1\",y=\"q\\\"u,o}te\"} 3\na{x=\"2\"} 4.5\n\nb 0\n";

    #[test]
    fn sums_the_series_that_carry_the_labels() {
        let metrics = Metrics::parse(TEXT).unwrap();
        assert_eq!(metrics.value("a", &[]), Some(7.5));
        assert_eq!(metrics.value("a", &[("x", "2")]), Some(4.5));
        assert_eq!(metrics.value("a", &[("y", "q\"u,o}te")]), Some(3.0));
        assert_eq!(metrics.value("a", &[("x", "3")]), None);
        assert_eq!(metrics.value("b", &[]), Some(0.0));
        assert_eq!(metrics.value("c", &[]), None);
    }

    #[test]
    fn a_broken_line_is_named() {
        assert_eq!(Metrics::parse("a{x=\"1} 3").unwrap_err(), "a{x=\"1} 3");
        assert_eq!(Metrics::parse("a x").unwrap_err(), "a x");
    }
}
