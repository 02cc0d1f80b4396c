// What the readiness probe asks of a Thrift2 server; numbers and names are those of HBase's own hbase.thrift.
struct TScan { 1: optional binary startRow }
struct TResult { 1: optional binary row }
struct TTableName { 1: optional binary ns, 2: required binary qualifier }
struct TTableDescriptor { 1: required TTableName tableName }
exception TIOError { 1: optional string message }

service THBaseService {
  list<TResult> getScannerResults(1: required binary table, 2: required TScan tscan, 3: i32 numRows = 1) throws (1: TIOError io)
  TTableDescriptor getTableDescriptor(1: required TTableName table) throws (1: TIOError io)
  string getClusterId()
}
