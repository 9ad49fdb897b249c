//! Which requests are answered here from their headers, and which go to the S3 library's own operations.

use hyper::{HeaderMap, Method};

use crate::exchange::Exchange;

/// Parameters that make a request one about something else than an object's data or a bucket's listing.
const SUBRESOURCES: &[&str] = &[
    "abac",
    "accelerate",
    "acl",
    "analytics",
    "attributes",
    "cors",
    "delete",
    "encryption",
    "events",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "lifecycle",
    "location",
    "logging",
    "metadataConfiguration",
    "metadataInventoryTable",
    "metadataJournalTable",
    "metadataTable",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "renameObject",
    "replication",
    "requestPayment",
    "restore",
    "retention",
    "select",
    "session",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versioning",
    "versions",
    "website",
];

/// A request that is answered here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Route {
    /// ListObjects.
    List,
    /// ListObjectsV2.
    ListV2,
    /// GetObject and HeadObject.
    Get,
    /// PutObject.
    Put,
    /// DeleteObject.
    Delete,
    /// DeleteObjects.
    DeleteMany,
    /// What is not there yet.
    NotThere,
}

/// Returns how a request is answered. `None`: the library decides.
pub fn route(method: &Method, exchange: &Exchange, headers: &HeaderMap) -> Option<Route> {
    let target = &exchange.target;
    target.bucket.as_ref()?;
    let about: Vec<&str> =
        exchange.query.names().filter(|name| SUBRESOURCES.contains(name)).collect();
    // The library takes what it does not know of a bucket for a request about the bucket itself.
    let is_known = |name: &str| (method, name) == (&Method::PUT, "acl");
    let changes_bucket = target.key.is_none() && matches!(*method, Method::PUT | Method::DELETE);
    if changes_bucket && about.iter().any(|name| !is_known(name)) {
        return Some(Route::NotThere);
    }
    if let (false, &Method::POST, ["delete"]) = (target.key.is_some(), method, &about[..]) {
        return Some(Route::DeleteMany);
    }
    if !about.is_empty() {
        return None;
    }
    match (target.key.is_some(), method) {
        (false, &Method::GET) if exchange.query.get("list-type") == Some("2") => {
            Some(Route::ListV2)
        }
        (false, &Method::GET) => Some(Route::List),
        (true, &Method::GET | &Method::HEAD) => Some(Route::Get),
        (true, &Method::PUT) if headers.contains_key("x-amz-copy-source") => None,
        (true, &Method::PUT) => Some(Route::Put),
        (true, &Method::DELETE) => Some(Route::Delete),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::target;
    use crate::percent::Query;

    #[test]
    fn requests_about_something_else_go_to_the_library() {
        let of = |method: Method, path: &str, query: &str| {
            let target = target(&[], None, path).expect("a path");
            let query = Query::parse(query).expect("UTF-8");
            let request = (method.clone(), path.to_string());
            let exchange = Exchange::new("1".to_string(), None, request, target, query);
            route(&method, &exchange, &HeaderMap::new())
        };
        assert_eq!(of(Method::GET, "/", ""), None);
        assert_eq!(of(Method::GET, "/b", ""), Some(Route::List));
        assert_eq!(of(Method::GET, "/b/", "list-type=2&prefix=acl"), Some(Route::ListV2));
        assert_eq!(of(Method::GET, "/b", "acl"), None);
        assert_eq!(of(Method::GET, "/b", "versions&list-type=2"), None);
        assert_eq!(of(Method::HEAD, "/b", ""), None);
        assert_eq!(of(Method::HEAD, "/b/k", "x-id=HeadObject"), Some(Route::Get));
        assert_eq!(of(Method::GET, "/b/k", "uploadId=1"), None);
        assert_eq!(of(Method::PUT, "/b/k", ""), Some(Route::Put));
        assert_eq!(of(Method::PUT, "/b/k", "partNumber=1&uploadId=1"), None);
        assert_eq!(of(Method::DELETE, "/b/k", ""), Some(Route::Delete));
        assert_eq!(of(Method::POST, "/b/k", ""), None);
        assert_eq!(of(Method::POST, "/b", "delete"), Some(Route::DeleteMany));
        assert_eq!(of(Method::POST, "/b/k", "delete"), None);
        assert_eq!(of(Method::POST, "/b", "delete&uploads"), None);
    }
}
