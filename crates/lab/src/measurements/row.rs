use std::io::BufRead;
use std::str;

use pollux_model::{Observation, Shape};

use super::error::{HeaderProblem, RowProblem};
use super::records::Records;

/// Far above any cluster; also how far the table of GPU counts may go.
pub const REPLICAS_MAX: u32 = 65_536;
/// Far above any micro-batch, tokens counted as samples included.
pub const LOCAL_BATCH_MAX: u32 = 1 << 24;
/// Longer placements fit their digits no better; `num_nodes` and `num_replicas` describe them.
const PLACEMENT_NODES_MAX: usize = 256;

const PLACEMENT: &str = "placement";
const NUM_NODES: &str = "num_nodes";
const NUM_REPLICAS: &str = "num_replicas";
const LOCAL_BSZ: &str = "local_bsz";
const STEP_TIME: &str = "step_time";
const SYNC_TIME: &str = "sync_time";

/// One measured step.
pub(super) struct Step<'a> {
    /// Replicas per node as digits; empty where only the shape is known.
    pub(super) placement: &'a str,
    pub(super) shape: Shape,
    pub(super) replicas_per_node_max: u32,
    pub(super) local_batch: u32,
    pub(super) step_s: f64,
    pub(super) sync_s: f64,
}

/// Where a file keeps what is needed, by its header.
pub(super) struct Columns {
    shape: ShapeColumns,
    local_batch: usize,
    step_s: usize,
    sync_s: usize,
    count: usize,
}

enum ShapeColumns {
    /// Counts beside it must agree with it.
    Placement {
        placement: usize,
        counts: Option<(usize, usize)>,
    },
    Counts {
        nodes: usize,
        replicas: usize,
    },
}

impl Columns {
    /// Finds the columns by name in the current record, the header.
    pub(super) fn of<R: BufRead>(header: &Records<R>) -> Result<Self, HeaderProblem> {
        let position = |name: &'static str| {
            let mut places = (0..header.len()).filter(|&idx| header.field(idx) == name.as_bytes());
            let first = places.next();
            if places.next().is_some() { Err(HeaderProblem::Repeated { name }) } else { Ok(first) }
        };
        let column = |name| position(name)?.ok_or_else(|| HeaderProblem::missing(name, header.line()));
        let shape = if let Some(idx) = position(PLACEMENT)? {
            ShapeColumns::Placement { placement: idx, counts: position(NUM_NODES)?.zip(position(NUM_REPLICAS)?) }
        } else if position(NUM_NODES)?.is_some() || position(NUM_REPLICAS)?.is_some() {
            ShapeColumns::Counts { nodes: column(NUM_NODES)?, replicas: column(NUM_REPLICAS)? }
        } else {
            return Err(HeaderProblem::unknown(header.line()));
        };
        Ok(Self {
            shape,
            local_batch: column(LOCAL_BSZ)?,
            step_s: column(STEP_TIME)?,
            sync_s: column(SYNC_TIME)?,
            count: header.len(),
        })
    }

    /// The step that the current record tells of.
    pub(super) fn step<'a, R: BufRead>(&self, record: &'a Records<R>) -> Result<Step<'a>, RowProblem> {
        if record.len() != self.count {
            return Err(RowProblem::FieldCount { found: record.len(), expected: self.count });
        }
        let (placement, shape, replicas_per_node_max) = match self.shape {
            ShapeColumns::Placement { placement: idx, counts } => {
                let placed = placement(record.field(idx))?;
                if let Some((nodes, replicas)) = counts {
                    agree(placed.1, record.field(idx), record.field(nodes), record.field(replicas))?;
                }
                placed
            }
            ShapeColumns::Counts { nodes, replicas } => {
                let shape = shape(record.field(nodes), record.field(replicas))?;
                ("", shape, shape.replicas().div_ceil(shape.nodes()))
            }
        };
        let local_batch = whole(LOCAL_BSZ, record.field(self.local_batch), LOCAL_BATCH_MAX)?;
        let (step_s, sync_s) = times(record.field(self.step_s), record.field(self.sync_s))?;
        Ok(Step { placement, shape, replicas_per_node_max, local_batch, step_s, sync_s })
    }
}

fn placement(field: &[u8]) -> Result<(&str, Shape, u32), RowProblem> {
    let refused =
        || RowProblem::value(PLACEMENT, field, "the replicas on each node as digits 1 to 9, like 1, 22 or 444");
    if field.len() > PLACEMENT_NODES_MAX {
        return Err(RowProblem::value(PLACEMENT, field, "at most 256 nodes; use num_nodes and num_replicas for more"));
    }
    let text = str::from_utf8(field).map_err(|_| refused())?;
    if !field.iter().all(|digit| (b'1'..=b'9').contains(digit)) {
        return Err(refused());
    }
    let replicas_on = |digit: &u8| u32::from(digit - b'0');
    let most = field.iter().map(replicas_on).max().ok_or_else(refused)?;
    let shape = Shape::new(field.len() as u32, field.iter().map(replicas_on).sum()).map_err(|_| refused())?;
    Ok((text, shape, most))
}

/// Refuses a placement beside counts of another shape; counts that were left empty say nothing.
fn agree(placed: Shape, placement: &[u8], nodes_field: &[u8], replicas_field: &[u8]) -> Result<(), RowProblem> {
    if nodes_field.is_empty() || replicas_field.is_empty() {
        return Ok(());
    }
    let counted = shape(nodes_field, replicas_field)?;
    if counted == placed { Ok(()) } else { Err(RowProblem::disagreement(placement, counted)) }
}

fn shape(nodes_field: &[u8], replicas_field: &[u8]) -> Result<Shape, RowProblem> {
    let replicas = whole(NUM_REPLICAS, replicas_field, REPLICAS_MAX)?;
    let nodes = whole(NUM_NODES, nodes_field, REPLICAS_MAX)?;
    Shape::new(nodes, replicas).map_err(|_| RowProblem::NodesAboveReplicas { nodes, replicas })
}

fn whole(column: &'static str, field: &[u8], max: u32) -> Result<u32, RowProblem> {
    let number = str::from_utf8(field).ok().and_then(|text| without_zero_fraction(text).parse().ok());
    number.filter(|number| (1..=max).contains(number)).ok_or_else(|| RowProblem::whole(column, field, max))
}

/// Data frames write whole numbers as `32.0` where a column once had a gap.
fn without_zero_fraction(text: &str) -> &str {
    match text.split_once('.') {
        Some((number, fraction)) if !fraction.is_empty() && fraction.bytes().all(|digit| digit == b'0') => number,
        _ => text,
    }
}

/// Step and synchronisation time, with some time left between them for compute.
fn times(step_field: &[u8], sync_field: &[u8]) -> Result<(f64, f64), RowProblem> {
    let seconds = |field| str::from_utf8(field).ok().and_then(|text| text.parse::<f64>().ok());
    let step_s = seconds(step_field)
        .filter(|step_s| Observation::STEP_TIME_RANGE_S.contains(step_s))
        .ok_or_else(|| RowProblem::value(STEP_TIME, step_field, "seconds from 1e-7 to 1e7"))?;
    let sync_s = seconds(sync_field)
        .filter(|sync_s| *sync_s >= 0.0 && step_s - sync_s >= *Observation::STEP_TIME_RANGE_S.start())
        .ok_or_else(|| RowProblem::sync_time(sync_field, step_s))?;
    Ok((step_s, sync_s))
}
