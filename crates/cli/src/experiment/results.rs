use pollux_policy::PolicySettings;
use pollux_sim::RunOutcome;

use super::file::{Axis, ExperimentFile, Plot, RequestChoice, Row};
use super::grid::{Column, Grid, Value};
use super::measure::Measure;
use super::timeline::Timeline;

/// What came out of an experiment.
pub(super) struct Results<'a> {
    pub(super) file: &'a ExperimentFile,
    /// What the kinds of workload are called.
    pub(super) sources: Vec<String>,
    /// Of each row.
    pub(super) policies: Vec<PolicySettings>,
    /// Kind of workload by kind, row by row, place by place.
    pub(super) outcomes: Vec<Vec<RunOutcome>>,
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
    pub(super) fn outcomes(&self, place: Place) -> &[RunOutcome] {
        let Place { source, row, point } = place;
        &self.outcomes[(source * self.file.rows.len() + row) * self.file.points() + point]
    }

    pub(super) fn measured(&self, place: Place, measure: Measure) -> f64 {
        measure.of(self.outcomes(place))
    }

    /// The figure that is expected there, if there is one of this physics.
    pub(super) fn expected(&self, place: Place, measure: Measure) -> Option<f64> {
        let figures = self.file.rows[place.row].expected.get(&measure).filter(|_| self.comparable)?;
        Some(figures.at(place.point))
    }

    /// The table: of a job's phases where it is drawn over time, else of the measures.
    pub(super) fn grid(&self) -> Grid {
        match &self.file.plot {
            Plot::Timeline { job, phases } => Timeline::new(self, job, phases).grid(),
            Plot::Bars { .. } | Plot::Lines { .. } | Plot::Fairness {} => self.measured_grid(),
        }
    }

    fn measured_grid(&self) -> Grid {
        let file = self.file;
        let requests = file.rows.iter().any(|row| row.requests != RequestChoice::Tuned);
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
        let ratios = self.reference(measure).is_some();
        columns.extend(ratios.then(|| Column::number(format!("{name} ratio"), "ratio")));
        if self.is_expected(measure) {
            columns.push(Column::number(format!("{name} expected"), "expected"));
            columns.extend(ratios.then(|| Column::number(format!("{name} ratio expected"), "ratio expected")));
        }
        columns
    }

    /// Where figures stand against a reference, their ratio is compared: it depends less on which jobs there are.
    fn measure_values(&self, place: Place, measure: Measure) -> Vec<Value> {
        let (digits, tolerance) = (measure.digits(), self.file.tolerance);
        let value = self.measured(place, measure);
        let expected = self.expected(place, measure);
        let compared = |value: f64, expected: f64, digits| Value::Expected {
            value: expected,
            digits,
            off: value / expected - 1.0,
            tolerance,
        };
        let mut values = vec![Value::Number { value, digits }];
        let Some(point) = self.reference(measure) else {
            let expected = expected.map_or(Value::Nothing, |expected| compared(value, expected, digits));
            values.extend(self.is_expected(measure).then_some(expected));
            return values;
        };
        let reference = Place { point, ..place };
        let ratio = value / self.measured(reference, measure);
        values.push(Value::Number { value: ratio, digits: 3 });
        if self.is_expected(measure) {
            let both = expected.zip(self.expected(reference, measure));
            values.push(expected.map_or(Value::Nothing, |value| Value::Number { value, digits }));
            values.push(both.map_or(Value::Nothing, |(here, there)| compared(ratio, here / there, 3)));
        }
        values
    }

    fn is_expected(&self, measure: Measure) -> bool {
        self.comparable && self.file.rows.iter().any(|row| row.expected.contains_key(&measure))
    }

    /// The place that others are compared with in the first measure.
    fn reference(&self, measure: Measure) -> Option<usize> {
        let Axis { values, reference, .. } = self.file.axis.as_ref()?;
        let point = values.iter().position(|value| Some(*value) == *reference)?;
        (measure == self.file.measures[0]).then_some(point)
    }
}
