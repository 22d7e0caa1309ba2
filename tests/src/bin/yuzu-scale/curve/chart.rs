//! One chart as SVG text: lines over a number of agents.
//!
//! Pure. Must never need a file or a font of its own: the text is the whole picture.

use std::fmt::Write as _;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 56.0;
/// About so many lines across.
const TICKS: f64 = 5.0;
/// Told apart by those who do not see colours as most do.
const COLOURS: [&str; 4] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7"];

/// What is drawn.
#[derive(Debug)]
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    /// What stands at the upright axis, with its unit.
    pub(super) of: &'a str,
    pub(super) lines: Vec<Line>,
}

/// One line; its points are in the order of their agents.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// An axis from 0.
#[derive(Debug, PartialEq)]
struct Axis {
    step: f64,
    end: f64,
}

impl Axis {
    /// For values up to `most`: steps of 1, 2 or 5, times a power of ten.
    fn up_to(most: f64) -> Self {
        let most = if most > 0.0 { most } else { 1.0 };
        let rough = most / TICKS;
        let power = 10_f64.powf(rough.log10().floor());
        let factors = [1.0, 2.0, 5.0, 10.0];
        let step = factors.map(|factor| factor * power);
        let step = step.into_iter().find(|step| *step >= rough * 0.999);
        let step = step.unwrap_or(10.0 * power);
        Self {
            step,
            end: (most / step - 0.001).ceil() * step,
        }
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let count = (self.end / self.step).round() as u32;
        let step = self.step;
        (0..=count).map(move |number| f64::from(number) * step)
    }

    /// A value as far as the steps tell it.
    fn label(&self, value: f64) -> String {
        let decimals = (-self.step.log10().floor()).max(0.0) as usize;
        with_thousands(&format!("{value:.decimals$}"))
    }
}

impl Chart<'_> {
    /// The picture.
    pub(super) fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let most = |of: fn(&(f64, f64)) -> f64| points().map(of).fold(0.0, f64::max);
        let (across, up) = (Axis::up_to(most(|p| p.0)), Axis::up_to(most(|p| p.1)));
        let x = |value: f64| LEFT + value / across.end * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| HEIGHT - BOTTOM - value / up.end * (HEIGHT - TOP - BOTTOM);
        let mut svg = String::new();
        // Writing to a string can't fail.
        let _ = writeln!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>"
        );
        text(&mut svg, (LEFT, 20.0), "start", self.title);
        for value in across.ticks() {
            line(&mut svg, (x(value), y(0.0)), (x(value), y(up.end)));
            let below = (x(value), y(0.0) + 18.0);
            text(&mut svg, below, "middle", &across.label(value));
        }
        for value in up.ticks() {
            line(&mut svg, (x(0.0), y(value)), (x(across.end), y(value)));
            let beside = (LEFT - 8.0, y(value) + 4.0);
            text(&mut svg, beside, "end", &up.label(value));
        }
        let under = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14.0);
        text(&mut svg, under, "middle", "agents");
        text(&mut svg, (LEFT, TOP - 14.0), "start", self.of);
        for (number, drawn) in self.lines.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            drawn.draw(&mut svg, colour, &x, &y);
            let place = (WIDTH - RIGHT, 20.0 + 16.0 * number as f64);
            let name = escaped(&drawn.name);
            let (x, y) = place;
            let _ = writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"end\" fill=\"{colour}\">{name}</text>"
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

impl Line {
    fn draw(
        &self,
        svg: &mut String,
        colour: &str,
        x: &impl Fn(f64) -> f64,
        y: &impl Fn(f64) -> f64,
    ) {
        let places = self.points.iter().map(|&(agents, value)| {
            let (x, y) = (x(agents), y(value));
            format!("{x:.1},{y:.1}")
        });
        let places: Vec<String> = places.collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            places.join(" ")
        );
        for &(agents, value) in &self.points {
            let (cx, cy) = (x(agents), y(value));
            let (name, agents) = (escaped(&self.name), with_thousands(&agents.to_string()));
            let _ = writeln!(
                svg,
                "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"3.5\" fill=\"{colour}\">\
                 <title>{name}, {agents} agents: {value:.2}</title></circle>"
            );
        }
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, words: &str) {
    let words = escaped(words);
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#333\">{words}</text>"
    );
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(
        svg,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"#ddd\"/>"
    );
}

fn escaped(words: &str) -> String {
    words
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Digits in groups of three.
fn with_thousands(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    let mut grouped = String::new();
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_a_round_step_over_the_largest_value() {
        let axis = |most, step, end| assert_eq!(Axis::up_to(most), Axis { step, end });
        axis(19_000.0, 5_000.0, 20_000.0);
        axis(28.5, 10.0, 30.0);
        axis(10_000.0, 2_000.0, 10_000.0);
        axis(0.0, 0.2, 1.0);
        let axis = Axis::up_to(2.3);
        let labels: Vec<_> = axis.ticks().map(|tick| axis.label(tick)).collect();
        assert_eq!(labels, ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5"]);
        assert_eq!(Axis::up_to(50_000.0).label(40_000.0), "40,000");
    }

    #[test]
    fn a_chart_has_every_point_in_its_place() {
        let chart = Chart {
            title: "Memory <idle>",
            of: "KiB",
            lines: vec![Line {
                name: "a & b".into(),
                points: vec![(0.0, 0.0), (10_000.0, 30.0)],
            }],
        };
        let svg = chart.svg();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("Memory &lt;idle&gt;") && svg.contains("a &amp; b"));
        // From the lower left corner of the field to the upper right one.
        let corners = "points=\"72.0,344.0 696.0,56.0\"";
        assert!(svg.contains(corners), "{svg}");
        assert!(svg.contains("<title>a &amp; b, 10,000 agents: 30.00</title>"));
        assert_eq!(svg.matches("<circle").count(), 2);
    }
}
