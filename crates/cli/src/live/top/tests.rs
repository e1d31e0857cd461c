use std::collections::BTreeMap;

use pollux_api::{ClusterStatus, Event, Explanation, Job, Node, NodeJob, SizeOutlook};
use pollux_client::JobAction;
use pollux_job::Phase;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::style::Color;
use unicode_width::UnicodeWidthStr;

use super::feed::{News, World};
use super::screen::{Screen, UserAction};

fn job(id: u64, name: &str, phase: Phase, replicas: u32) -> Job {
    let runs = replicas > 0;
    Job {
        id,
        name: name.to_owned(),
        phase,
        phase_since_ms: 0,
        submitted_ms: 0,
        started_ms: None,
        ended_ms: None,
        replicas,
        gpus_per_replica: 1,
        nodes: u32::from(runs),
        batch_size: runs.then_some(512),
        learning_rate_factor: None,
        samples_per_s: runs.then_some(850.0),
        efficiency: runs.then_some(0.9),
        goodput: runs.then_some(765.0),
        speedup: None,
        unfairness: None,
        epochs: None,
        progress: runs.then_some(0.5),
        remaining_s: runs.then_some(90.0),
        attained_gpu_s: 0.0,
        queued_s: 0.0,
        restarts: 0,
        retries: 0,
        owner: "ada".to_owned(),
        failure: None,
    }
}

fn node(name: &str, gpus_held: u32, jobs: &[(u64, u32)]) -> Node {
    let jobs = jobs.iter().map(|&(id, replicas)| NodeJob {
        id,
        name: format!("job-{id}"),
        replicas,
        gpus_per_replica: 1,
        is_guest: false,
    });
    Node {
        name: name.to_owned(),
        gpus: 4,
        gpu_type: "cpu".to_owned(),
        gpus_held,
        cpus: None,
        cpus_held: 0,
        memory: None,
        memory_held: 0,
        is_draining: false,
        drains_at_ms: None,
        ends_at_ms: None,
        is_unreachable: false,
        is_retired: false,
        cooling_until_ms: None,
        jobs: jobs.collect(),
        agent: None,
    }
}

fn world() -> World {
    let event = |sequence, text: &str| Event {
        sequence,
        at_ms: 3_600_000 + sequence * 1_000,
        job: Some(1),
        kind: "ready".to_owned(),
        text: text.to_owned(),
        detail: serde_json::Value::Null,
    };
    World {
        cluster: ClusterStatus {
            version: "0.1.0".to_owned(),
            policy: "pollux".to_owned(),
            now_ms: 10_000,
            gpus: 8,
            gpus_held: 4,
            jobs: BTreeMap::from([(Phase::Queued, 1), (Phase::Running, 1)]),
            goodput: 765.0,
            last_event: 0,
            last_round_ms: Some(0),
            next_round_ms: Some(22_000),
            is_degraded: false,
        },
        nodes: vec![node("local-0", 4, &[(1, 3)]), Node { is_draining: true, ..node("local-1", 0, &[]) }],
        jobs: vec![
            job(1, "resnet", Phase::Running, 3),
            job(2, "be\u{1b}[2Jrt", Phase::Queued, 0),
            job(0, "old", Phase::Failed, 0),
        ],
        events: vec![event(1, "launched on 3 GPUs"), event(2, "all of it trains")],
    }
}

fn screen() -> Screen {
    let mut screen = Screen::new("http://127.0.0.1:7878");
    screen.hear(News::World(Box::new(world())));
    screen
}

fn press(screen: &mut Screen, key: char) -> Option<UserAction> {
    screen.press(KeyEvent::from(KeyCode::Char(key)))
}

fn drawn(screen: &Screen) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(100, 24)).unwrap();
    terminal.draw(|frame| frame.render_widget(screen, frame.area())).unwrap();
    terminal
}

fn text(screen: &Screen) -> String {
    super::frame(screen, 100, 24)
}

fn check(screen: &Screen, lines: &[&str]) {
    let text = text(screen);
    for line in lines {
        assert!(text.contains(line), "{line:?} is missing:\n{text}");
    }
}

#[test]
fn a_frame_shows_the_cluster_its_nodes_jobs_and_events() {
    check(
        &screen(),
        &[
            "pollux 0.1.0 at http://127.0.0.1:7878, policy pollux: 1 queued, 1 running\n",
            "███████████████                4 of 8 GPUs held   goodput 765   next plan in 12s\n",
            "│local-0    1     1     1    ~  ",
            "│local-1   ·     ·     ·     ·    draining",
            "     1 resnet               running      3     512       850   90%      765 ████      50%   1m 30s",
            "     2 be\\u{1b}[2Jrt        queued       0       -         -     -        - -                    -",
            "01:00:02  job 1 resnet: all of it trains",
            "↑↓ choose  e explain  p pause  r resume  c cancel  q quit",
        ],
    );
}

#[test]
fn wide_letters_in_names_move_nothing_out_of_its_column() {
    let mut world = world();
    world.nodes[0].name = "訓練機-0".to_owned();
    world.jobs[0].name = "🚀 日本語".to_owned();
    let mut screen = Screen::new("http://127.0.0.1:7878");
    screen.hear(News::World(Box::new(world)));
    let text = text(&screen);
    let bordered: Vec<&str> = text.lines().filter(|line| line.starts_with('│')).collect();
    assert!(bordered.iter().all(|line| line.width() == 100), "{text}");
    let column = |name: &str, cell: char| {
        let line = bordered.iter().find(|line| line.contains(name)).unwrap();
        line[..line.find(cell).unwrap()].width()
    };
    // A number is one further to the right in its cell than a dot.
    assert_eq!(column("訓練機-0", '1'), column("local-1", '·') + 1, "{text}");
}

#[test]
fn a_job_has_the_same_colour_on_every_gpu_it_holds() {
    let terminal = drawn(&screen());
    let background = |column| terminal.backend().buffer()[(column, 4)].bg;
    assert_eq!([11, 17, 23].map(background), [Color::Blue; 3]);
    assert_eq!([29, 40].map(background), [Color::DarkGray, Color::Reset]);
}

#[test]
fn keys_are_about_the_selected_job() {
    let mut screen = screen();
    assert_eq!(press(&mut screen, 'p'), Some(UserAction::Act(1, JobAction::Pause)));
    assert_eq!(screen.press(KeyEvent::from(KeyCode::Down)), None);
    assert_eq!(press(&mut screen, 'r'), Some(UserAction::Act(2, JobAction::Resume)));
    assert_eq!(screen.press(KeyEvent::from(KeyCode::End)), None);
    assert_eq!(screen.press(KeyEvent::from(KeyCode::Down)), None);
    assert_eq!(press(&mut screen, 'e'), Some(UserAction::Explain(0)));
    // The list moves on below the cursor, which stays with its job.
    let mut later = world();
    later.jobs.insert(0, job(9, "new", Phase::Queued, 0));
    screen.hear(News::World(Box::new(later)));
    assert_eq!(press(&mut screen, 'e'), Some(UserAction::Explain(0)));
    assert_eq!(press(&mut screen, 'q'), Some(UserAction::Quit));
}

#[test]
fn a_job_is_cancelled_only_after_a_yes() {
    let mut screen = screen();
    assert_eq!(press(&mut screen, 'c'), None);
    check(&screen, &["Cancel job 1 resnet? y: yes, any other key: no"]);
    assert_eq!(press(&mut screen, 'n'), None);
    assert_eq!(press(&mut screen, 'y'), None);
    press(&mut screen, 'c');
    assert_eq!(press(&mut screen, 'y'), Some(UserAction::Act(1, JobAction::Cancel)));
    assert!(!text(&screen).contains("Cancel job"));
}

#[test]
fn a_lost_server_is_told_beside_what_was_last_known() {
    let mut screen = screen();
    screen.hear(News::Lost("no server at http://127.0.0.1:7878: start one with `pollux up`".to_owned()));
    check(&screen, &["lost: no server at http://127.0.0.1:7878: start one with `pollux up`; trying again", "resnet"]);
    screen.hear(News::World(Box::new(world())));
    assert!(!text(&screen).contains("lost"));
}

#[test]
fn an_explanation_lies_over_the_rest_until_a_key_is_pressed() {
    let mut screen = screen();
    let size = SizeOutlook {
        replicas: 3,
        nodes: 1,
        batch_size: 512,
        samples_per_s: 850.0,
        efficiency: 0.9,
        goodput: 765.0,
        is_measured: true,
    };
    screen.hear(News::Explained(Box::new(Explanation {
        id: 1,
        name: "resnet".to_owned(),
        phase: Phase::Running,
        replicas: 3,
        gpus_per_replica: 1,
        sentences: vec!["It has what it is worth, ".repeat(6)],
        wait: None,
        binding: None,
        one_more: None,
        one_fewer: None,
        payer: None,
        fair_share: None,
        next_round_ms: None,
        sizes: vec![size],
        types: Vec::new(),
    })));
    check(
        &screen,
        &[" job 1 resnet ", "│ what it is worth, It has what", " now    3      512    90%       765  ██████"],
    );
    assert_eq!(press(&mut screen, 'p'), None);
    assert!(!text(&screen).contains("It has what"));
}

#[test]
fn no_size_is_too_small_to_draw_on() {
    for (columns, lines) in [(0, 0), (1, 1), (10, 3), (20, 10), (300, 100)] {
        let mut screen = screen();
        super::frame(&screen, columns, lines);
        press(&mut screen, 'c');
        super::frame(&screen, columns, lines);
    }
}
