//! Settings come from files.

use pollux_engine::EngineSettings;

#[test]
fn settings_take_their_defaults_and_refuse_unknown_keys() {
    let settings: EngineSettings = serde_json::from_str(r#"{"round_interval_s": 30.0}"#).unwrap();
    assert_eq!(settings, EngineSettings { round_interval_s: 30.0, ..EngineSettings::default() });
    let error = serde_json::from_str::<EngineSettings>(r#"{"round_intervall_s": 30.0}"#).unwrap_err();
    assert!(error.to_string().contains("round_intervall_s"), "{error}");
}
