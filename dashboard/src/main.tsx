import { render } from "preact";
import { App } from "./app";
import { follow } from "./live";
import { followTheme } from "./theme";
import "uplot/dist/uPlot.min.css";
import "./style/tokens.css";
import "./style/base.css";
import "./style/parts.css";
import "./style/pages.css";
import "../../crates/sim/src/report/page.css";

followTheme();
follow();
const place = document.getElementById("app");
if (place) render(<App />, place);
