//! A journal is replayed by another engine than the one that wrote it.

use pollux_engine::{Command, Engine, EngineSettings, Event};
use pollux_job::JobSpec;
use pollux_model::GpuTypeName;
use pollux_policy::{JobId, NodeId, Plan, PolicySettings, Timestamp};

#[expect(clippy::large_enum_variant, reason = "a journal of a test is short")]
enum Record {
    Event(Timestamp, Event),
    Round(Timestamp, Option<Plan>),
}

fn engine(settle_timeout_s: f64) -> Engine {
    let settings = EngineSettings { settle_timeout_s, ..EngineSettings::default() };
    Engine::new(settings, &PolicySettings::Fifo).expect("settings that work")
}

/// An hour in which a group is started again and again, because it never trains.
fn journal(engine: &mut Engine) -> Vec<Record> {
    let spec = JobSpec { retries: 1_000, ..JobSpec::new("resnet", 1) };
    let mut events = vec![
        Event::NodeJoined { node: NodeId(1), gpus: 1, gpu_type: GpuTypeName::default(), cpus: None, memory: None },
        Event::JobSubmitted { job: JobId(1), spec },
    ];
    let (mut now, mut records) = (Timestamp(0), Vec::new());
    while now < Timestamp(3_600_000) {
        let mut commands = Vec::new();
        for event in events.drain(..) {
            records.push(Record::Event(now, event.clone()));
            engine.step(now, event, &mut commands);
        }
        now = engine.next_wakeup().expect("a job waits").max(Timestamp(now.0 + 1));
        let last_round = engine.last_round();
        records.push(Record::Event(now, Event::Tick));
        engine.step(now, Event::Tick, &mut commands);
        if engine.last_round() != last_round {
            records.push(Record::Round(now, engine.last_plan().map(|(_, plan)| plan.clone())));
        }
        events.extend(commands.into_iter().filter_map(|command| match command {
            Command::Stop { job, revision, allocation, .. } => {
                Some(Event::ReplicasReleased { job, revision, allocation })
            }
            Command::Launch { .. } | Command::Resize { .. } | Command::PlanRejected { .. } | Command::Refused(_) => {
                None
            }
        }));
    }
    records
}

#[test]
fn plans_that_do_not_fit_after_a_change_of_timeouts_are_left_out_and_no_job_is_lost() {
    let timeouts_s = [20.0, 100.0, 600.0];
    let mut rejected = 0;
    for (before, after) in timeouts_s.iter().flat_map(|&before| timeouts_s.map(|after| (before, after))) {
        let (mut writer, mut reader) = (engine(before), engine(after));
        for record in journal(&mut writer) {
            let mut commands = Vec::new();
            match record {
                Record::Event(at, event) => reader.replay(at, event, &mut commands),
                Record::Round(at, plan) => reader.replay_round(at, Some("fifo"), plan, &mut commands),
            }
            reader.check_invariants();
            let is_rejected = commands.iter().any(|command| matches!(command, Command::PlanRejected { .. }));
            assert!(before != after || !is_rejected, "what was decided under the same settings fits");
            rejected += u32::from(is_rejected);
        }
        assert!(reader.job(JobId(1)).is_some_and(|job| !job.phase().is_ended()), "{before} s, then {after} s");
    }
    assert!(rejected > 0, "every plan fitted");
}
