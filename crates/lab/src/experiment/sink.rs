//! Figures of a cell's network sinks, from the line that `tollgate run --json` prints at its end.

use super::TimeUnit;
use serde::Deserialize;
use strum::{EnumString, IntoStaticStr, VariantNames};

/// A figure of the frames that a machine's sinks have received. Frames of all stamped streams count, others do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub enum Figure {
    /// Number of frames.
    Frames,
    /// Number of frames that were sent and have not arrived.
    Lost,
    /// Number of frames that arrived after one that was sent later.
    Reordered,
    /// Frames per second between the first and the last.
    Rate,
    /// Smallest latency.
    LatencyMin,
    /// Mean latency.
    LatencyMean,
    /// Median latency.
    LatencyP50,
    /// 90th percentile of the latencies.
    LatencyP90,
    /// 99th percentile of the latencies.
    LatencyP99,
    /// Largest latency.
    LatencyMax,
}

/// Units of rates, with the number of frames per second in each.
const RATES: [(&str, f64); 3] = [("pps", 1.0), ("kpps", 1e3), ("Mpps", 1e6)];
const NANOSECOND: f64 = 1e-9;

impl Figure {
    /// The names of all.
    pub const NAMES: &[&str] = Self::VARIANTS;

    /// Returns true if the figure is a number of frames.
    pub fn is_count(self) -> bool {
        matches!(self, Self::Frames | Self::Lost | Self::Reordered)
    }

    /// Returns the number of frames per second, or of seconds, in a unit. The error names the possible units. Counts have any unit.
    fn scale(self, unit: &str) -> Result<f64, String> {
        if self.is_count() {
            return Ok(1.0);
        }
        if self == Self::Rate {
            let found = RATES.iter().find(|(name, _)| *name == unit);
            let wrong = || format!("'{unit}' is none of {}", RATES.map(|(name, _)| name).join(", "));
            return found.map(|(_, scale)| *scale).ok_or_else(wrong);
        }
        let wrong = || format!("'{unit}' is none of {}", TimeUnit::SYMBOLS.join(", "));
        TimeUnit::from_symbol(unit).map(|unit| 1.0 / unit.per_second()).ok_or_else(wrong)
    }

    /// Checks that the figure can be shown in a unit.
    pub fn check_unit(self, unit: &str) -> Result<(), String> {
        self.scale(unit).map(drop)
    }
}

/// The reason why the sinks have no such figure.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SinkError {
    /// The output has no line of JSON with network devices.
    #[error("it printed no line of JSON with figures of network devices")]
    Missing,
    /// No stamped frame has arrived.
    #[error("no stamped frame has reached a sink")]
    Nothing,
    /// Rates and latencies of several streams cannot be combined.
    #[error("{0} streams have reached the sinks, where rate and latency are those of one")]
    Several(usize),
    /// The frames do not say when they were sent.
    #[error("the frames that have reached the sink do not have the time of their transmission")]
    Untimed,
    /// The figure cannot be shown in this unit.
    #[error("{0}")]
    Unit(String),
}

#[derive(Deserialize)]
struct Report {
    network: Vec<Nic>,
}

#[derive(Deserialize)]
struct Nic {
    generator: Option<Generator>,
    sink: Option<Sink>,
}

#[derive(Deserialize)]
struct Generator {
    stream: u16,
    sent: u64,
    came_back: u64,
}

#[derive(Deserialize)]
struct Sink {
    streams: Vec<Stream>,
}

#[derive(Deserialize)]
struct Stream {
    stream: u16,
    frames: u64,
    lost: u64,
    reordered: u64,
    frames_per_second: f64,
    latency_ns: Option<Latency>,
}

#[derive(Deserialize)]
struct Latency {
    min: f64,
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

/// Returns the report at the end of the output. The guest prints before `tollgate run` does, so the last line counts.
fn report(output: &str) -> Option<Report> {
    output.lines().rev().find_map(|line| serde_json::from_str(line.get(line.find('{')?..)?).ok())
}

/// Returns the figure of the sinks whose report ends `output`.
pub fn value(output: &str, figure: Figure, unit: &str) -> Result<f64, SinkError> {
    let scale = figure.scale(unit).map_err(SinkError::Unit)?;
    let Report { network } = report(output).ok_or(SinkError::Missing)?;
    let streams: Vec<&Stream> =
        network.iter().filter_map(|nic| nic.sink.as_ref()).flat_map(|sink| &sink.streams).collect();
    let generators: Vec<&Generator> = network.iter().filter_map(|nic| nic.generator.as_ref()).collect();
    let sum = |of: fn(&Stream) -> u64| streams.iter().fold(0_u64, |sum, stream| sum.saturating_add(of(stream))) as f64;
    let one = || match streams[..] {
        [] => Err(SinkError::Nothing),
        [stream] => Ok(stream),
        _ => Err(SinkError::Several(streams.len())),
    };
    let latency = |of: fn(&Latency) -> f64| {
        let latency = one()?.latency_ns.as_ref().ok_or(SinkError::Untimed)?;
        Ok(of(latency) * NANOSECOND)
    };
    let raw = match figure {
        Figure::Frames => sum(|stream| stream.frames),
        Figure::Reordered => sum(|stream| stream.reordered),
        Figure::Lost => lost(&streams, &generators)?,
        Figure::Rate => one()?.frames_per_second,
        Figure::LatencyMin => latency(|latency| latency.min)?,
        Figure::LatencyMean => latency(|latency| latency.mean)?,
        Figure::LatencyP50 => latency(|latency| latency.p50)?,
        Figure::LatencyP90 => latency(|latency| latency.p90)?,
        Figure::LatencyP99 => latency(|latency| latency.p99)?,
        Figure::LatencyMax => latency(|latency| latency.max)?,
    };
    Ok(raw / scale)
}

/// Returns the number of lost frames. A generator of the machine knows how many frames it has sent; of another sender's stream, the gaps in its numbers
/// are known.
fn lost(streams: &[&Stream], generators: &[&Generator]) -> Result<f64, SinkError> {
    if streams.is_empty() && generators.is_empty() {
        return Err(SinkError::Nothing);
    }
    let generated = generators.iter().map(|generator| generator.sent.saturating_sub(generator.came_back));
    let others = streams.iter().filter(|stream| generators.iter().all(|generator| generator.stream != stream.stream));
    Ok(generated.chain(others.map(|stream| stream.lost)).fold(0_u64, u64::saturating_add) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of a guest, with the report of a sink and perhaps a generator.
    fn output(generator: &str, streams: &[&str]) -> String {
        let nics =
            format!(r#"[{{"name":"eth0"{generator}}},{{"name":"eth1","sink":{{"streams":[{}]}}}}]"#, streams.join(","));
        format!("{{\"network\":[]}} says the guest\n{{\"status\":0,\"network\":{nics}}}\n")
    }

    fn stream(number: u16, lost: u64) -> String {
        let latency = r#"{"min":100,"mean":250.5,"p50":200,"p90":300,"p99":400,"max":1000}"#;
        format!(
            r#"{{"stream":{number},"frames":90,"lost":{lost},"reordered":7,"frames_per_second":2500.0,"latency_ns":{latency}}}"#
        )
    }

    #[test]
    fn figures_are_those_of_the_last_line() {
        let output = output("", &[&stream(3, 10)]);
        let of = |figure: &str, unit| value(&output, figure.parse().unwrap(), unit);
        assert_eq!(of("frames", "frames"), Ok(90.0));
        assert_eq!(of("lost", "datagrams"), Ok(10.0));
        assert_eq!(of("reordered", "frames"), Ok(7.0));
        assert_eq!(of("rate", "kpps"), Ok(2.5));
        let times: Vec<f64> = Figure::NAMES[4..].iter().map(|name| of(name, "ns").unwrap().round()).collect();
        assert_eq!(times, [100.0, 251.0, 200.0, 300.0, 400.0, 1000.0]);
        assert!((of("latency-max", "us").unwrap() - 1.0).abs() < 1e-9);
        assert_eq!(of("rate", "frames"), Err(SinkError::Unit("'frames' is none of pps, kpps, Mpps".to_owned())));
        assert_eq!(of("latency-p50", "pps"), Err(SinkError::Unit("'pps' is none of ns, us, ms, s".to_owned())));
    }

    #[test]
    fn a_generator_knows_the_frames_that_never_arrived() {
        let generator = r#","generator":{"stream":3,"sent":100,"came_back":60}"#;
        let both = output(generator, &[&stream(3, 5), &stream(9, 2)]);
        assert_eq!(value(&both, Figure::Lost, "frames"), Ok(42.0));
        assert_eq!(value(&both, Figure::Reordered, "frames"), Ok(14.0));
        assert_eq!(value(&both, Figure::Rate, "pps"), Err(SinkError::Several(2)));
        assert_eq!(value(&output(generator, &[]), Figure::Lost, "frames"), Ok(40.0));
    }

    #[test]
    fn missing_figures_are_named() {
        assert_eq!(value("boot\n{\"status\":0}\n", Figure::Lost, "frames"), Err(SinkError::Missing));
        assert_eq!(value(&output("", &[]), Figure::Lost, "frames"), Err(SinkError::Nothing));
        assert_eq!(value(&output("", &[]), Figure::Rate, "pps"), Err(SinkError::Nothing));
        assert_eq!(value(&output("", &[]), Figure::Frames, "frames"), Ok(0.0));
    }
}
