use pollux_policy::PolicySettings;
use pollux_sim::Requests;

use super::file::{Axis, ExperimentFile, Plot, Row};
use super::grid::{Column, Figure, Grid, Value};
use super::measure::Measure;
use super::outcome::Outcome;
use super::timeline::Timeline;

/// What came out of an experiment.
pub(super) struct Results<'a> {
    pub(super) file: &'a ExperimentFile,
    /// What the kinds of workload are called.
    pub(super) sources: Vec<String>,
    /// Of each row.
    pub(super) policies: Vec<PolicySettings>,
    /// Kind of workload by kind, row by row, place by place.
    pub(super) outcomes: Vec<Vec<Outcome>>,
    /// Whether expected figures are of this physics.
    pub(super) comparable: bool,
}

/// A row on one kind of workload at one place of the axis.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) source: usize,
    pub(super) row: usize,
    pub(super) point: usize,
}

impl Results<'_> {
    /// One outcome for each workload.
    pub(super) fn outcomes(&self, place: Place) -> &[Outcome] {
        let Place { source, row, point } = place;
        &self.outcomes[(source * self.file.rows.len() + row) * self.file.points() + point]
    }

    pub(super) fn measured(&self, place: Place, measure: Measure) -> f64 {
        measure.of(self.outcomes(place))
    }

    /// The figure that is expected there, if there is one of this physics.
    pub(super) fn expected(&self, place: Place, measure: Measure) -> Option<f64> {
        let figures = self.file.rows[place.row].expected.get(&measure).filter(|_| self.comparable)?;
        figures.at(place.point, &self.sources[place.source])
    }

    /// The table: of a job's phases where it has some, else of the measures.
    pub(super) fn grid(&self) -> Grid {
        match &self.file.plot {
            Plot::Timeline { job, phases, .. } if !phases.is_empty() => Timeline::new(self, job, phases).grid(),
            Plot::Bars { .. } | Plot::Lines { .. } | Plot::Fairness {} | Plot::Timeline { .. } => self.measured_grid(),
        }
    }

    fn measured_grid(&self) -> Grid {
        let file = self.file;
        let requests = file.rows.iter().any(|row| row.requests != Requests::Tuned);
        let mut columns = Vec::new();
        columns.extend((self.sources.len() > 1).then(|| Column::text("workloads")));
        columns.push(Column::text("row"));
        columns.extend(requests.then(|| Column::text("requests")));
        columns.extend(file.axis.as_ref().map(|axis| Column::number(axis.setting.name(), axis.setting.heading())));
        for &measure in &file.measures {
            columns.extend(self.measure_columns(measure));
        }
        let mut lines = Vec::new();
        for (source, label) in self.sources.iter().enumerate() {
            for (row, Row { label: row_label, .. }) in file.rows.iter().enumerate() {
                for point in 0..file.points() {
                    let mut line = Vec::with_capacity(columns.len());
                    line.extend((self.sources.len() > 1).then(|| Value::Text(label.clone())));
                    line.push(Value::Text(row_label.clone()));
                    line.extend(requests.then(|| Value::Text(self.requests(row).to_owned())));
                    line.extend(file.axis.as_ref().map(|axis| Value::Text(axis.values[point].to_string())));
                    for &measure in &file.measures {
                        line.extend(self.measure_values(Place { source, row, point }, measure));
                    }
                    lines.push(line);
                }
            }
        }
        Grid { columns, lines }
    }

    /// What users ask for, where that matters.
    fn requests(&self, row: usize) -> &'static str {
        if self.policies[row].adapts_batches() { "ignored" } else { self.file.rows[row].requests.name() }
    }

    fn measure_columns(&self, measure: Measure) -> Vec<Column> {
        let name = measure.name();
        let mut columns = vec![Column::number(name, measure.title())];
        let ratios = self.has_ratios(measure);
        columns.extend(ratios.then(|| Column::number(format!("{name} ratio"), "ratio")));
        if self.is_expected(measure) {
            columns.push(Column::number(format!("{name} expected"), "expected"));
            columns.extend(ratios.then(|| Column::number(format!("{name} ratio expected"), "ratio expected")));
        }
        columns
    }

    /// Where figures stand against a reference, their ratio is compared: it depends less on which jobs there are.
    fn measure_values(&self, place: Place, measure: Measure) -> Vec<Value> {
        let value = self.measured(place, measure);
        let expected = self.expected(place, measure);
        let compared = |value: f64, expected: Option<f64>, figure: fn(f64) -> Figure| {
            let tolerance = self.file.tolerance;
            expected.map_or(Value::Nothing, |expected| Value::Expected {
                figure: figure(expected),
                off: value / expected - 1.0,
                tolerance,
            })
        };
        let mut values = vec![Value::number(value)];
        let Some(reference) = self.reference(place, measure) else {
            values.extend(self.is_expected(measure).then(|| compared(value, expected, Figure::Number)));
            return values;
        };
        let ratio = value / self.measured(reference, measure);
        values.push(Value::Measured(Figure::Ratio(ratio)));
        if self.is_expected(measure) {
            let both = expected.zip(self.expected(reference, measure));
            values.push(expected.map_or(Value::Nothing, Value::number));
            values.push(compared(ratio, both.map(|(here, there)| here / there), Figure::Ratio));
        }
        values
    }

    fn is_expected(&self, measure: Measure) -> bool {
        self.comparable && self.file.rows.iter().any(|row| row.expected.contains_key(&measure))
    }

    fn has_ratios(&self, measure: Measure) -> bool {
        self.reference(Place { source: 0, row: 0, point: 0 }, measure).is_some()
    }

    /// What a place is compared with in the first measure: the reference of the axis, or of the rows.
    fn reference(&self, place: Place, measure: Measure) -> Option<Place> {
        if measure != self.file.measures[0] {
            return None;
        }
        if let Some(label) = &self.file.reference {
            let row = self.file.rows.iter().position(|row| row.label == *label)?;
            return Some(Place { row, ..place });
        }
        let Axis { values, reference, .. } = self.file.axis.as_ref()?;
        let point = values.iter().position(|value| Some(*value) == *reference)?;
        Some(Place { point, ..place })
    }
}
