//! The header of a file.

use paceline_record::Rank;

use super::build::Builder;
use super::number::parse_whole;
use super::scan::{Cursor, Stop};
use crate::trace::Trace;

/// The useful members of the outermost object, besides the events.
pub const MEMBERS: [&str; 4] = ["distributedInfo", "deviceProperties", "baseTimeNanoseconds", "host_name"];

/// Takes the value of a member.
pub fn read_member(builder: &mut Builder, key: &str, cursor: &mut Cursor<'_>) -> Result<(), Stop> {
    let value = cursor.value()?;
    let token = value.token();
    let trace = &mut builder.trace;
    match key {
        "baseTimeNanoseconds" => builder.base = parse_whole(token).and_then(|base| i64::try_from(base).ok()),
        "host_name" => trace.host = Some(value.text().plain()).filter(|host| !host.is_empty()),
        // The value is complete: if its content cannot be read, its format is unknown, not damaged.
        "distributedInfo" => drop(read_distributed(trace, &mut Cursor::new(token))),
        "deviceProperties" => drop(read_devices(trace, &mut Cursor::new(token))),
        _ => {}
    }
    Ok(())
}

fn read_distributed(trace: &mut Trace, cursor: &mut Cursor<'_>) -> Result<(), Stop> {
    let number = |token| parse_whole(token).and_then(|number| u32::try_from(number).ok());
    cursor.expect(b'{')?;
    while let Some(key) = cursor.member()? {
        let value = cursor.value()?;
        match key.raw {
            b"backend" => trace.backend = Some(value.text().plain()).filter(|backend| !backend.is_empty()),
            b"rank" => trace.rank = number(value.token()).map(Rank),
            b"world_size" => trace.world = number(value.token()),
            _ => {}
        }
    }
    Ok(())
}

fn read_devices(trace: &mut Trace, cursor: &mut Cursor<'_>) -> Result<(), Stop> {
    cursor.expect(b'[')?;
    while cursor.element()? {
        cursor.expect(b'{')?;
        while let Some(key) = cursor.member()? {
            let value = cursor.value()?;
            if key.raw == b"name" {
                trace.devices.push(value.text().plain());
            }
        }
    }
    Ok(())
}
