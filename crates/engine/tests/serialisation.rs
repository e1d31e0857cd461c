//! Events, commands and settings survive a journal.

use pollux_engine::{Command, EngineSettings, Event, JobSpec, Refusal, Revision, Work};
use pollux_policy::{Allocation, JobId, NodeId};

#[test]
fn events_and_commands_come_back_as_they_were() {
    let spec = JobSpec { work: Some(Work::Epochs(3)), ..JobSpec::new("resnet", 2) };
    let submitted = Event::JobSubmitted { job: JobId(7), spec };
    let text = serde_json::to_string(&submitted).unwrap();
    assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), submitted);
    assert_eq!(serde_json::from_str::<Event>("\"tick\"").unwrap(), Event::Tick);

    let commands = [
        Command::Launch {
            job: JobId(7),
            revision: Revision(1),
            allocation: Allocation::on(NodeId(3), 2),
            guest_of: Some(JobId(5)),
        },
        Command::Refused(Refusal::EndedJob { job: JobId(7) }),
    ];
    let text = serde_json::to_string(&commands).unwrap();
    assert_eq!(
        text,
        r#"[{"launch":{"job":7,"revision":1,"allocation":[[3,2]],"guest_of":5}},{"refused":{"ended_job":{"job":7}}}]"#
    );
    assert_eq!(serde_json::from_str::<[Command; 2]>(&text).unwrap(), commands);
}

#[test]
fn an_allocation_read_out_of_order_is_put_in_order() {
    let text = r#"{"replicas_released":{"job":7,"generation":1,"allocation":[[5,1],[3,2],[4,0]]}}"#;
    let allocation = [(NodeId(3), 2), (NodeId(5), 1)].into_iter().collect();
    let expected = Event::ReplicasReleased { job: JobId(7), revision: Revision(1), allocation };
    assert_eq!(serde_json::from_str::<Event>(text).unwrap(), expected);
}

#[test]
fn settings_take_their_defaults_and_refuse_unknown_keys() {
    let settings: EngineSettings = serde_json::from_str(r#"{"round_interval_s": 30.0}"#).unwrap();
    assert_eq!(settings, EngineSettings { round_interval_s: 30.0, ..EngineSettings::default() });
    let error = serde_json::from_str::<EngineSettings>(r#"{"round_intervall_s": 30.0}"#).unwrap_err();
    assert!(error.to_string().contains("round_intervall_s"), "{error}");
}
