//! The gateway that `up` starts, used by the clients that people have: the AWS command line and boto3.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::harness::{ASHLAR, Cluster, Directory, run, succeed, wait_for};

/// Returns the directory with the programs of S3 clients; installs them once.
fn clients() -> &'static Path {
    static CLIENTS: OnceLock<PathBuf> = OnceLock::new();
    CLIENTS.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let dir = Path::new(ASHLAR).parent().expect("a directory").join("s3-clients");
        succeed(Command::new("sh").arg(root.join("scripts/s3-clients.sh")).arg(&dir));
        dir.join("bin")
    })
}

/// A cluster with a gateway, and what `up` said of it.
struct Gateway {
    cluster: Cluster,
    up: Value,
}

fn up(cluster: &Cluster) -> Value {
    serde_json::from_str(&succeed(&mut up_command(cluster, &["--detach"]))).expect("JSON")
}

impl Gateway {
    fn new(name: &str) -> Gateway {
        let cluster = Cluster { directory: Directory::new(name) };
        let up = up(&cluster);
        Gateway { cluster, up }
    }

    fn said(&self, name: &str) -> &str {
        self.up["gateway"][name].as_str().unwrap_or_else(|| panic!("{name}: {}", self.up))
    }

    /// Returns a client program with the keys that `up` printed.
    fn client(&self, program: &str) -> Command {
        let mut command = Command::new(clients().join(program));
        command
            .env("AWS_ENDPOINT_URL", self.said("url"))
            .env("AWS_REGION", self.said("region"))
            .env("AWS_ACCESS_KEY_ID", self.said("access_key"))
            .env("AWS_SECRET_ACCESS_KEY", self.said("secret_key"))
            .env("AWS_MAX_ATTEMPTS", "5")
            .env("AWS_CONFIG_FILE", self.cluster.path().join("none"))
            .env("AWS_SHARED_CREDENTIALS_FILE", self.cluster.path().join("none"))
            .env("HOME", self.cluster.path());
        command
    }

    fn aws(&self, arguments: &[&str]) -> String {
        succeed(self.client("aws").args(arguments))
    }

    fn python(&self, script: &str) -> String {
        succeed(self.client("python3").args(["-c", script]))
    }
}

#[test]
fn the_aws_command_line_stores_and_fetches_files() {
    let gateway = Gateway::new("aws");
    let files = Directory::new("aws-files");
    let path = |name: &str| files.path().join(name).display().to_string();
    fs::write(path("small"), "stone\n").expect("writable");
    fs::write(path("larger"), vec![7u8; 50_000]).expect("writable");
    fs::write(path("empty"), "").expect("writable");
    assert_eq!(gateway.aws(&["s3", "ls"]), "");
    gateway.aws(&["s3", "mb", "s3://photos"]);
    assert!(gateway.aws(&["s3", "ls"]).contains("photos"));
    for name in ["small", "larger", "empty"] {
        gateway.aws(&["s3", "cp", &path(name), &format!("s3://photos/a/{name}")]);
        gateway.aws(&["s3", "cp", &format!("s3://photos/a/{name}"), &path("back")]);
        let (there, back) = (fs::read(path(name)), fs::read(path("back")));
        assert_eq!(there.expect("it is there"), back.expect("it came"), "{name}");
    }
    assert!(gateway.aws(&["s3", "ls", "s3://photos"]).contains("PRE a/"));
    let listed = gateway.aws(&["s3", "ls", "--recursive", "s3://photos"]);
    assert_eq!(listed.lines().count(), 3, "{listed}");
    let not_empty = run(gateway.client("aws").args(["s3", "rb", "s3://photos"]));
    assert!(String::from_utf8_lossy(&not_empty.stderr).contains("BucketNotEmpty"));

    let status = gateway.cluster.json(&["status"]);
    assert_eq!(status["gateways"][0]["url"], gateway.said("url"));
    assert_eq!(status["gateways"][0]["up"], true);
    let buckets = gateway.cluster.json(&["bucket", "ls"]);
    assert_eq!((&buckets[0]["name"], &buckets[0]["owner"]), (&"photos".into(), &"admin".into()));
    let log = fs::read_to_string(gateway.cluster.path().join("log/gateway.log")).expect("a log");
    assert!(log.contains("path=/photos/a/small"), "{log}");
    let up_log = fs::read_to_string(gateway.cluster.path().join("log/up.log")).unwrap_or_default();
    for text in [log, up_log] {
        assert!(!text.contains(gateway.said("secret_key")), "a secret is in a log");
    }

    // It all stays, and the secret is told once.
    gateway.cluster.down();
    let again = up(&gateway.cluster);
    assert_eq!(again["gateway"]["url"], gateway.said("url"));
    assert_eq!(again["gateway"]["secret_key"], Value::Null);
    let printed = gateway.aws(&["s3", "cp", "s3://photos/a/small", "-"]);
    assert_eq!(printed, "stone\n");
    gateway.aws(&["s3", "rm", "--recursive", "s3://photos"]);
    gateway.aws(&["s3", "rb", "s3://photos"]);
    assert_eq!(gateway.aws(&["s3", "ls"]), "");
}

/// Returns the command that starts a cluster with a gateway.
fn up_command(cluster: &Cluster, arguments: &[&str]) -> Command {
    let mut up = Command::new(ASHLAR);
    up.args(["up", "--json", "--osds", "2", "--osd-size", "256MiB"]).args(arguments);
    up.arg("--dir").arg(cluster.path());
    up
}

#[test]
fn the_first_user_is_created_once_and_its_key_is_printed_in_the_foreground() {
    let cluster = Cluster { directory: Directory::new("foreground") };
    let mut up = up_command(&cluster, &[]).stdout(Stdio::piped()).spawn().expect("it starts");
    let stdout = up.stdout.take().expect("a pipe");
    let mut printed = serde_json::Deserializer::from_reader(stdout).into_iter::<Value>();
    let printed = printed.next().expect("it prints").expect("JSON");
    let key = printed["gateway"]["access_key"].as_str().expect("a key").to_owned();
    assert!(printed["gateway"]["secret_key"].is_string(), "{printed}");
    cluster.run(&["user", "key", "rm", &key]);
    cluster.run(&["user", "rm", "admin"]);
    cluster.down();
    assert!(up.wait().expect("it ends").success());
    let again = self::up(&cluster);
    assert!(again["gateway"]["url"].is_string(), "{again}");
    assert_eq!(again["gateway"]["secret_key"], Value::Null, "{again}");
    assert_eq!(cluster.json(&["user", "ls"]), serde_json::json!([]));
}

#[test]
fn the_key_of_the_first_user_waits_for_somebody_to_be_told() {
    let cluster = Cluster { directory: Directory::new("told") };
    let mut first = up_command(&cluster, &["--detach"]);
    let mut first = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    wait_for("the socket of `up`", || cluster.path().join("up.sock").exists());
    // It goes away before it is told anything.
    first.kill().expect("it runs");
    first.wait().expect("it is a child");
    wait_for("the first key", || {
        let keys = run(&mut cluster.command(&["user", "key", "ls", "admin"]));
        String::from_utf8_lossy(&keys.stdout).contains("AK")
    });
    let told = up(&cluster);
    assert!(told["gateway"]["secret_key"].is_string(), "{told}");
    let again = up(&cluster);
    assert_eq!(again["gateway"]["secret_key"], Value::Null, "{again}");
    // A start that failed before it told the key.
    cluster.down();
    fs::write(cluster.path().join("first-user"), "").expect("writable");
    let told = up(&cluster);
    assert!(told["gateway"]["secret_key"].is_string(), "{told}");
    assert_eq!(cluster.json(&["user", "ls"]).as_array().map(Vec::len), Some(1));
    assert!(!cluster.path().join("first-user").exists());
}

/// An upload whose second half comes late.
const SLOW_UPLOAD: &str = r#"
import boto3, botocore.config, http.client, time, urllib.parse
v4 = boto3.client("s3", config=botocore.config.Config(signature_version="s3v4"))
v4.create_bucket(Bucket="photos")
url = v4.generate_presigned_url("put_object", Params={"Bucket": "photos", "Key": "slow"})
parts = urllib.parse.urlsplit(url)
connection = http.client.HTTPConnection(parts.netloc)
connection.putrequest("PUT", parts.path + "?" + parts.query)
connection.putheader("content-length", "6")
connection.endheaders(b"sto")
print("sent", flush=True)
time.sleep(17)
connection.send(b"ne\n")
print(connection.getresponse().status, flush=True)
"#;

#[test]
fn down_waits_for_requests_that_began() {
    let gateway = Gateway::new("stop");
    let mut upload = gateway.client("python3");
    let upload = upload.args(["-c", SLOW_UPLOAD]).stdout(Stdio::piped());
    let mut upload = upload.spawn().expect("it starts");
    let mut lines = BufReader::new(upload.stdout.take().expect("a pipe")).lines();
    let mut line = || lines.next().expect("a line").expect("text");
    assert_eq!(line(), "sent");
    gateway.cluster.down();
    assert_eq!(line(), "200");
    assert!(upload.wait().expect("it ends").success());
    up(&gateway.cluster);
    assert_eq!(gateway.aws(&["s3", "cp", "s3://photos/slow", "-"]), "stone\n");
}

/// Bytes of which no two parts are equal.
fn bytes_of(size: usize) -> Vec<u8> {
    let words = (0..size.div_ceil(8) as u64).map(|at| (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    words.flat_map(u64::to_le_bytes).take(size).collect()
}

#[test]
fn large_files_lie_in_containers_of_the_default_pool() {
    let gateway = Gateway::new("large");
    let cluster = &gateway.cluster;
    let files = Directory::new("large-files");
    let path = |name: &str| files.path().join(name).display().to_string();
    let data = bytes_of((20 << 20) + 4321);
    fs::write(path("there"), &data).expect("writable");
    // One request for each file, as an upload in parts is not there yet.
    let config = "[default]\ns3 =\n  multipart_threshold = 64MB\n";
    fs::write(path("config"), config).expect("writable");
    let whole = |arguments: &[&str]| {
        let mut aws = gateway.client("aws");
        succeed(aws.env("AWS_CONFIG_FILE", path("config")).args(arguments))
    };
    let is_same = |part: &[u8]| assert!(fs::read(path("back")).expect("it came") == part);
    gateway.aws(&["s3", "mb", "s3://photos"]);
    whole(&["s3", "cp", &path("there"), "s3://photos/large"]);
    whole(&["s3", "cp", "s3://photos/large", &path("back")]);
    is_same(&data);
    // In ranges, several at once.
    gateway.aws(&["s3", "cp", "s3://photos/large", &path("back")]);
    is_same(&data);
    let get = ["s3api", "get-object", "--bucket", "photos", "--key", "large", "--range"];
    gateway.aws(&[&get[..], &["bytes=1048575-3145728", &path("back")]].concat());
    is_same(&data[1_048_575..=3_145_728]);

    // The container is there, and in nobody's way.
    let containers = || {
        let rows = cluster.json(&["volume", "ls", "--all"]);
        let rows = rows.as_array().expect("a list").clone();
        rows.into_iter().filter(|row| row["gateway"] == true).collect::<Vec<_>>()
    };
    let rows = containers();
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!(rows[0]["pool"], "default");
    // A volume has fewer than 2^32 stripes.
    assert_eq!(rows[0]["size_bytes"], (512_u64 << 40) - (128 << 10));
    assert_eq!(cluster.json(&["volume", "ls"]), Value::Array(Vec::new()));
    cluster.run(&["volume", "create", "disk1", "--size", "64MiB"]);
    cluster.refused(&["volume", "rm", rows[0]["name"].as_str().expect("a name")], "invalid");

    // Another session has containers of its own, and reads the old ones.
    cluster.down();
    up(cluster);
    whole(&["s3", "cp", &path("there"), "s3://photos/second"]);
    assert_eq!(containers().len(), 2);
    for name in ["large", "second"] {
        whole(&["s3", "cp", &format!("s3://photos/{name}"), &path("back")]);
        is_same(&data);
        gateway.aws(&["s3", "rm", &format!("s3://photos/{name}")]);
    }
    gateway.aws(&["s3", "rb", "s3://photos"]);
}

const CONDITIONS: &str = r#"
import boto3, botocore, botocore.config, threading
s3 = boto3.client("s3")
s3.create_bucket(Bucket="race")
def status(call, **arguments):
    try:
        return call(Bucket="race", **arguments)["ResponseMetadata"]["HTTPStatusCode"]
    except botocore.exceptions.ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"]
# Of many writers at once, one wins.
barrier, seen = threading.Barrier(16), []
def write(number):
    client = boto3.session.Session().client("s3")
    barrier.wait()
    body = b"%d" % number
    code = status(client.put_object, Key="k", Body=body, IfNoneMatch="*")
    seen.append((code, body))
threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
won = [body for code, body in seen if code == 200]
assert len(won) == 1, seen
assert all(code in (200, 409, 412) for code, body in seen), seen
got = s3.get_object(Bucket="race", Key="k")
assert got["Body"].read() == won[0], seen
tag = got["ETag"]
assert status(s3.put_object, Key="k", Body=b"x", IfMatch='"other"') == 412
assert status(s3.put_object, Key="k", Body=b"x", IfMatch=tag) == 200
assert status(s3.put_object, Key="k", Body=b"y", IfMatch=tag) == 412
assert status(s3.get_object, Key="k", IfMatch=tag) == 412
# Every checksum that there is.
for kind in ["CRC32", "CRC32C", "SHA1", "SHA256", "CRC64NVME"]:
    try:
        put = s3.put_object(Bucket="race", Key="sum", Body=b"stone", ChecksumAlgorithm=kind)
    except botocore.exceptions.MissingDependencyException:
        continue
    got = s3.get_object(Bucket="race", Key="sum", ChecksumMode="ENABLED")
    assert got["Checksum" + kind] == put["Checksum" + kind], (kind, put, got)
    assert got["Body"].read() == b"stone"
# Metadata, ranges, lists and deletion.
s3.put_object(Bucket="race", Key="m", Body=b"0123456789", Metadata={"colour": "blue"},
              ContentType="text/plain")
got = s3.get_object(Bucket="race", Key="m", Range="bytes=2-4")
assert (got["Body"].read(), got["Metadata"]) == (b"234", {"colour": "blue"}), got
for number in range(25):
    s3.put_object(Bucket="race", Key="many/%02d +&" % number, Body=b"")
pages = s3.get_paginator("list_objects_v2").paginate(Bucket="race", Prefix="many/",
                                                     PaginationConfig={"PageSize": 10})
keys = [entry["Key"] for page in pages for entry in page["Contents"]]
assert keys == ["many/%02d +&" % number for number in range(25)], keys
every = [entry["Key"] for entry in s3.list_objects(Bucket="race")["Contents"]]
s3.delete_objects(Bucket="race", Delete={"Objects": [{"Key": key} for key in every]})
assert s3.list_objects_v2(Bucket="race")["KeyCount"] == 0
# Without this, boto3 presigns with version 2.
v4 = boto3.client("s3", config=botocore.config.Config(signature_version="s3v4"))
url = v4.generate_presigned_url("put_object", Params={"Bucket": "race", "Key": "p"})
import urllib.request
urllib.request.urlopen(urllib.request.Request(url, data=b"signed", method="PUT",
                                              headers={"content-type": ""}))
assert s3.get_object(Bucket="race", Key="p")["Body"].read() == b"signed"
s3.delete_object(Bucket="race", Key="p")
s3.delete_bucket(Bucket="race")
print("done")
"#;

#[test]
fn conditional_writes_of_boto3_are_exact() {
    let gateway = Gateway::new("boto3");
    assert_eq!(gateway.python(CONDITIONS), "done\n");
}

#[test]
fn users_have_keys_and_buckets_of_their_own() {
    let gateway = Gateway::new("users");
    let cluster = &gateway.cluster;
    let ann = cluster.json(&["user", "create", "ann"]);
    assert_eq!(ann["name"], "ann");
    let secret = ann["secret_key"].as_str().expect("shown once");
    cluster.refused(&["user", "create", "ann"], "invalid");
    let names = cluster.json(&["user", "ls"]);
    let names: Vec<&str> =
        names.as_array().expect("a list").iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["admin", "ann"]);
    let second = cluster.json(&["user", "key", "add", "ann"]);
    let keys = cluster.json(&["user", "key", "ls", "ann"]);
    assert_eq!(keys.as_array().map(Vec::len), Some(2));
    assert!(!keys.to_string().contains(secret) && !keys.to_string().contains("secret"));
    let aws = |key: &Value, arguments: &[&str]| {
        let mut aws = gateway.client("aws");
        for (variable, name) in
            [("AWS_ACCESS_KEY_ID", "access_key"), ("AWS_SECRET_ACCESS_KEY", "secret_key")]
        {
            aws.env(variable, key[name].as_str().expect("a key"));
        }
        run(aws.args(arguments))
    };
    assert!(aws(&ann, &["s3", "mb", "s3://anns"]).status.success());
    assert!(gateway.aws(&["s3", "ls"]).is_empty(), "others do not see it");
    let denied = run(gateway.client("aws").args(["s3", "ls", "s3://anns"]));
    assert!(String::from_utf8_lossy(&denied.stderr).contains("AccessDenied"), "{denied:?}");
    assert_eq!(cluster.json(&["bucket", "info", "anns"])["owner"], "ann");
    cluster.run(&["bucket", "create", "more", "--owner", "ann", "--spread", "1"]);
    cluster.refused(&["bucket", "create", "more2", "--owner", "bob"], "not_found");
    cluster.refused(&["bucket", "info", "none"], "not_found");
    cluster.refused(&["user", "rm", "ann"], "invalid");
    for name in ["anns", "more"] {
        cluster.run(&["bucket", "rm", name]);
    }
    for key in [&ann, &second] {
        cluster.run(&["user", "key", "rm", key["access_key"].as_str().expect("a key")]);
    }
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(!aws(&ann, &["s3", "ls"]).status.success());
    cluster.run(&["user", "rm", "ann"]);
}

#[test]
fn a_gateway_of_its_own_serves_the_same_buckets() {
    let gateway = Gateway::new("second");
    gateway.aws(&["s3", "mb", "s3://photos"]);
    gateway.cluster.refused(&["gateway", "--index-pool", "none"], "not_found");
    gateway.cluster.refused(&["gateway", "--index-pool", "default"], "invalid");
    gateway.cluster.refused(&["gateway", "--data-pool", "none"], "not_found");
    gateway.cluster.refused(&["gateway", "--data-pool", "gateway"], "invalid");
    let url = gateway.said("url").to_owned();
    let place = url.trim_start_matches("http://");
    let taken = format!("--listen=tcp:{place}");
    gateway.cluster.refused(&["gateway", &taken], "io");
    let health = succeed(Command::new("curl").args(["-sf", &format!("{url}/-/health")]));
    assert_eq!(health, "ok\n");
}
