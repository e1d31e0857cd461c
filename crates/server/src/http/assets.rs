//! The dashboard, which holds nothing that a token protects.

use std::sync::LazyLock;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY,
};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use sha2::{Digest, Sha256};

use super::state::AppState;

/// Scripts, styles and answers of this server, and nothing else; text never becomes markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";
/// Who asks for another build asks for another address.
const FOR_EVER: &str = "public, max-age=31536000, immutable";
const ASK_AGAIN: &str = "no-cache";

/// A file of the bundle, compressed when it was built.
struct Asset {
    path: &'static str,
    content_type: &'static str,
    bytes: &'static [u8],
}

const ASSETS: [Asset; 3] = [
    Asset { path: "/", content_type: "text/html; charset=utf-8", bytes: include_bytes!("../../assets/index.html.gz") },
    Asset {
        path: "/assets/app.js",
        content_type: "text/javascript; charset=utf-8",
        bytes: include_bytes!("../../assets/app.js.gz"),
    },
    Asset {
        path: "/assets/app.css",
        content_type: "text/css; charset=utf-8",
        bytes: include_bytes!("../../assets/app.css.gz"),
    },
];

static TAGS: LazyLock<[String; 3]> = LazyLock::new(|| {
    std::array::from_fn(|idx| {
        let digest = Sha256::digest(ASSETS[idx].bytes);
        let hex: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("\"{hex}\"")
    })
});

pub(super) fn routes() -> Router<AppState> {
    ASSETS.iter().enumerate().fold(Router::new(), |router, (idx, asset)| {
        router.route(asset.path, get(async move |request: Request| serve(idx, &request)))
    })
}

fn serve(idx: usize, request: &Request) -> Response {
    let (asset, tag) = (&ASSETS[idx], TAGS[idx].as_str());
    // The page names scripts and styles with what they hold, so that those never change.
    let is_named = asset.path != "/" && request.uri().query().is_some();
    let caching = if is_named { FOR_EVER } else { ASK_AGAIN };
    let headers: [(HeaderName, &str); 6] = [
        (CACHE_CONTROL, caching),
        (ETAG, tag),
        (VARY, "accept-encoding"),
        (CONTENT_TYPE, asset.content_type),
        (CONTENT_ENCODING, "gzip"),
        (CONTENT_SECURITY_POLICY, POLICY),
    ];
    let asked = request.headers().get(IF_NONE_MATCH);
    if asked.is_some_and(|asked| asked.as_bytes() == tag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    (headers, asset.bytes).into_response()
}

/// What every answer says unless it says otherwise: it is data, and no page.
pub(super) const NO_PAGE: HeaderValue = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
